"""Goal: whatever an upstream does to a stream, its call ends once and leaks nothing."""

import asyncio

import pytest

from core.errors import PoolUnavailableError
from gpu_consumers.engines.engine import EngineAnswer
from tests.integration.engines.conformance import CHAT, chat_body, content_of
from tests.integration.engines.conformance_online import Listener, stream
from tests.integration.engines.raw_server import Peer, answering, engine_before, sending

BODY = chat_body(stream=True)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
TOKEN = b'{"choices":[{"index":0,"delta":{"content":"a"}}]}'
USAGE = b'{"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":1}}'


def events(*payloads: bytes) -> bytes:
    parts = [b"data: %b\n\n" % payload for payload in payloads]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


def code_of(answer: EngineAnswer) -> object:
    return content_of(answer)["error"]["code"]


async def test_streams_reuse_a_kept_alive_connection() -> None:
    async def post(peer: Peer) -> bool:
        await peer.send(CHUNKED + events(TOKEN, USAGE, b"[DONE]"))
        await asyncio.sleep(0.001)  # as servers do: the end comes in a packet of its own
        await peer.send(b"0\r\n\r\n")
        return True

    async with engine_before(answering(post)) as (engine, server):
        for _ in range(5):
            answer, listener = await stream(engine, CHAT, BODY)
            assert (answer.status_code, answer.output_tokens) == (200, 1)
            assert listener.pieces == [TOKEN]
            assert (await engine.serve(CHAT, chat_body(), None)).status_code == 502
        assert len(server.peers) == 1


async def test_stream_ends_with_its_last_event() -> None:
    async def post(peer: Peer) -> bool:
        await peer.send(CHUNKED + events(TOKEN, b"[DONE]"))
        await peer.gone()
        return False

    async with engine_before(answering(post)) as (engine, _):
        answer, _ = await asyncio.wait_for(stream(engine, CHAT, BODY), 20)
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (CHUNKED + events(TOKEN), "stream_interrupted"),
        (CHUNKED + events(TOKEN) + b"0\r\n\r\n", "stream_interrupted"),
        (HEAD + b"\r\ndata: " + TOKEN + b"\n\n", "stream_interrupted"),
        (CHUNKED + events(TOKEN) + b"no chunk\r\n", "stream_interrupted"),
        (CHUNKED + events(TOKEN, b"x" * 600_000), "stream_interrupted"),
        (CHUNKED + events(TOKEN, b"{"), "answer_not_json"),
        (CHUNKED + events(TOKEN, b'{"error":{"code":"full"}}'), "full"),
    ],
    ids=["lost", "cut", "closed", "garbled", "huge", "not-json", "error"],
)
async def test_interrupted_stream_differs_from_a_complete_one(wire: bytes, code: str) -> None:
    async with engine_before(sending(wire, keeps=False)) as (engine, server):
        answer, listener = await stream(engine, CHAT, BODY)
        assert (answer.status_code, code_of(answer)) == (502, code)
        assert listener.pieces == [TOKEN]
        assert answer.output_tokens == 1
        assert len(server.peers) == 1  # what has begun is never asked again


async def test_response_without_events_fails_a_stream() -> None:
    """Its caller would see a stream that ended well and said nothing."""
    whole = b'{"choices":[{"index":0}],"usage":{"prompt_tokens":2,"completion_tokens":1}}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    async with engine_before(sending(head % len(whole) + whole)) as (engine, _):
        answer, listener = await stream(engine, CHAT, BODY)
        assert (answer.status_code, code_of(answer)) == (502, "answer_not_events")
        assert listener.pieces == []
        assert (answer.input_tokens, answer.output_tokens) == (0, 0)
        assert (await engine.serve(CHAT, chat_body(), None)).status_code == 200


async def test_stream_lost_before_its_first_event_is_retried() -> None:
    asked = 0

    async def post(peer: Peer) -> bool:
        nonlocal asked
        asked += 1
        whole = CHUNKED + events(TOKEN, b"[DONE]") + b"0\r\n\r\n"
        await peer.send(CHUNKED if asked == 1 else whole)
        return asked > 1

    async with engine_before(answering(post)) as (engine, _):
        answer, listener = await stream(engine, CHAT, BODY)
        assert (answer.status_code, listener.pieces) == (200, [TOKEN])


async def test_stream_is_bounded_by_the_item_timeout() -> None:
    async def post(peer: Peer) -> bool:
        await peer.send(CHUNKED)
        for _ in range(1000):
            await peer.send(events(TOKEN))
            await asyncio.sleep(0.01)
        return True

    async with engine_before(answering(post), item_timeout_s=2) as (engine, _):
        answer, listener = await stream(engine, CHAT, BODY)
        assert (answer.status_code, code_of(answer)) == (504, "item_timeout")
        assert answer.output_tokens == len(listener.pieces) > 1


async def test_busy_upstream_of_a_stream_is_a_pool_failure() -> None:
    busy = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
    async with engine_before(sending(busy)) as (engine, _):
        with pytest.raises(PoolUnavailableError):
            await stream(engine, CHAT, BODY)


async def test_cancelled_stream_closes_its_connection() -> None:
    gone = asyncio.Event()

    async def post(peer: Peer) -> bool:
        await peer.send(CHUNKED + events(TOKEN))
        await peer.gone()
        gone.set()
        return False

    async with engine_before(answering(post)) as (engine, _):
        listener = Listener()
        call = asyncio.create_task(engine.serve(CHAT, BODY, listener))
        await asyncio.wait_for(listener.first.wait(), 20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(gone.wait(), 20)
