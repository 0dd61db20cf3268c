"""Goal: whatever an upstream sends or withholds, each item ends once and the engine continues."""

import asyncio
import time

import pytest

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.openai_http import http_client
from gpu_consumers.engines.openai_http.openai_http_engine import OpenAIHttpEngine
from tests.integration.engines.conformance import (
    CHAT,
    assert_error_envelope,
    chat_body,
    content_of,
    run,
)
from tests.integration.engines.raw_server import (
    ANSWER,
    HEAD,
    Peer,
    answering,
    engine_before,
    sending,
)


async def ask(engine: OpenAIHttpEngine, body: bytes | None = None) -> EngineAnswer:
    (answer,) = await asyncio.wait_for(run(engine, CHAT, [body or chat_body()]), 20)
    return answer


def code_of(answer: EngineAnswer) -> str:
    assert_error_envelope(answer, answer.status_code)
    return str(content_of(answer)["error"]["code"])


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "answer_not_http"),
        (HEAD + b"a: " + b"x" * 300_000, "answer_not_http"),
        (HEAD + b"\r\n" + b" " * 300_000, "answer_too_large"),
        (b"", "upstream_disconnected"),
        (HEAD + b"Content-Length: 3\r\n\r\n{}", "upstream_disconnected"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[-24:].hex(),
)
async def test_unusable_response_fails_only_its_item(content: bytes, code: str) -> None:
    useless = True

    async def post(peer: Peer) -> bool:
        await peer.send(content if useless else ANSWER)
        return not useless

    async with engine_before(answering(post), answer_bytes_max=4096) as (engine, _):
        answer = await ask(engine)
        assert (answer.status_code, code_of(answer)) == (502, code)
        useless = False
        assert await ask(engine) == EngineAnswer(200, b"{}")


@pytest.mark.parametrize("content", [b"", HEAD, HEAD + b"Content-Length: 3\r\n\r\n{}"])
async def test_lost_connection_is_retried_once_on_a_new_one(content: bytes) -> None:
    left = 1

    async def post(peer: Peer) -> bool:
        nonlocal left
        left -= 1
        await peer.send(content if left == 0 else ANSWER)
        return left < 0

    async with engine_before(answering(post)) as (engine, server):
        assert await ask(engine) == EngineAnswer(200, b"{}")
        assert len(server.peers) == 2


async def test_server_that_closes_after_every_response_loses_nothing() -> None:
    """The retry must not use another kept-alive connection, which may be closed as well."""
    async with engine_before(sending(ANSWER, keeps=False), concurrency=16) as (engine, _):
        for _ in range(5):
            answers = await run(engine, CHAT, [chat_body()] * 100)
            assert {answer.status_code for answer in answers} == {200}


async def test_retry_does_not_extend_the_item_timeout() -> None:
    tries = 0

    async def post(peer: Peer) -> bool:
        nonlocal tries
        tries += 1
        if tries == 1:
            await asyncio.sleep(1.0)
            return False
        await asyncio.sleep(1.5)  # in time if the timeout had restarted
        await peer.send(ANSWER)
        return False

    async with engine_before(answering(post), item_timeout_s=2) as (engine, _):
        assert code_of(await ask(engine)) == "item_timeout"
    assert tries == 2


async def test_slow_response_does_not_extend_the_item_timeout() -> None:
    async def post(peer: Peer) -> bool:
        await peer.send(HEAD + b"Content-Length: 4000\r\n\r\n")
        for _ in range(4000):
            await peer.send(b" ")
            await asyncio.sleep(0.01)
        return True

    async with engine_before(answering(post), item_timeout_s=0.5) as (engine, server):
        start_s = time.monotonic()
        assert code_of(await ask(engine)) == "item_timeout"
        assert 0.49 <= time.monotonic() - start_s < 20  # a loop's clock may be a tick behind
        await asyncio.wait_for(server.peers[-1].gone(), 20)


async def test_cancelled_call_closes_its_connection_and_releases_its_slot() -> None:
    begun = asyncio.Event()

    async def post(peer: Peer) -> bool:
        if begun.is_set():
            await peer.send(ANSWER)
            return True
        await peer.send(HEAD + b"Content-Length: 2\r\n\r\n{")
        begun.set()
        await peer.gone()
        closed.set()
        return False

    closed = asyncio.Event()
    async with engine_before(answering(post), concurrency=1) as (engine, server):
        call = asyncio.create_task(run(engine, CHAT, [chat_body()]))
        await asyncio.wait_for(begun.wait(), 20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(closed.wait(), 20)
        assert await ask(engine) == EngineAnswer(200, b"{}")
        assert len(server.peers) == 2


@pytest.mark.parametrize("late", [b"x", b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"evil":1}'])
async def test_unrequested_bytes_answer_no_item(late: bytes) -> None:
    idle = asyncio.Event()

    async def handle(peer: Peer) -> None:
        while await peer.request() is not None:
            await peer.send(ANSWER)
            if not idle.is_set():
                await idle.wait()
                await peer.send(late)
                await peer.gone()
                closed.set()
                return

    closed = asyncio.Event()
    async with engine_before(handle) as (engine, server):
        idle.set()
        await asyncio.wait_for(closed.wait(), 20)
        assert await ask(engine) == EngineAnswer(200, b"{}")
        assert len(server.peers) == 2


@pytest.mark.parametrize("is_stopped", [False, True], ids=["idle", "stopped"])
async def test_idle_connections_and_those_of_a_stopped_engine_are_closed(
    monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    monkeypatch.setattr(http_client, "_IDLE_S_MAX", 60.0 if is_stopped else 0.2)
    gone = asyncio.Queue[None]()

    async def handle(peer: Peer) -> None:
        while await peer.request() is not None:
            await peer.send(ANSWER)
        gone.put_nowait(None)

    async with engine_before(handle, concurrency=8) as (engine, server):
        await run(engine, CHAT, [chat_body()] * 50)
        assert len(server.peers) == 8
        if is_stopped:
            await engine.stop()
        for _ in server.peers:
            await asyncio.wait_for(gone.get(), 20)
        if not is_stopped:
            assert await ask(engine) == EngineAnswer(200, b"{}")


async def test_large_body_is_sent_in_parts() -> None:
    """A response before the end of the body ends the call and its connection."""

    async def handle(peer: Peer) -> None:
        while (head := await peer.head()).startswith(b"GET"):
            await peer.send(ANSWER)
        assert b"content-length: 64000" in head.lower()
        await filled.wait()
        await peer.send(b'HTTP/1.1 413 Large\r\nContent-Length: 12\r\n\r\n{"error":{}}')
        await refused.wait()

    filled, refused = asyncio.Event(), asyncio.Event()
    async with engine_before(handle) as (engine, _):
        call = asyncio.create_task(ask(engine, chat_body("x" * 64_000_000)))
        transport = await asyncio.wait_for(_full_transport(engine), 20)
        assert transport.get_write_buffer_size() < 1_000_000
        filled.set()
        assert await call == EngineAnswer(413, b'{"error":{}}')
        assert transport.is_closing()
        refused.set()


async def _full_transport(engine: OpenAIHttpEngine) -> asyncio.Transport:
    while True:
        for connection in engine._client._opened:
            if connection._is_paused and connection._transport is not None:
                return connection._transport
        await asyncio.sleep(0.01)
