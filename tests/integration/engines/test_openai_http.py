"""Goal: an upstream's response to an item is the item's; everything else is the pool's failure."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from core.errors import PoolUnavailableError
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import is_transient
from gpu_consumers.engines.openai_http.openai_http_engine import OpenAIHttpEngine
from tests.integration.engines.conformance import (
    CHAT,
    assert_error_envelope,
    chat_body,
    content_of,
    run,
)
from tests.integration.engines.upstream import Respond, Upstream, http_settings, serve


@asynccontextmanager
async def engine_for(upstream: Upstream, **fields: object) -> AsyncIterator[OpenAIHttpEngine]:
    async with serve(upstream) as url:
        engine = OpenAIHttpEngine(http_settings(url, **fields))
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()


def always(status: int, body: bytes = b"", **headers: str) -> Respond:
    async def respond(_: web.Request, __: bytes) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers=headers)

    return respond


def _unheard(_: bytes) -> None:
    pytest.fail("emitted")


async def test_body_is_sent_unchanged_with_the_key() -> None:
    upstream = Upstream("m")
    body = b'{ "messages" :[{"role":"user","content":"\xc3\xa9"}],  "seed": 1e2}'
    async with engine_for(upstream, upstream_api_key="secret") as engine:
        await run(engine, CHAT, [body])
    request, received = upstream.received[0]
    assert received == body
    assert request.path == CHAT
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.headers["Content-Type"] == "application/json"


async def test_base_url_may_end_in_v1() -> None:
    async with serve(Upstream("m")) as url:
        engine = OpenAIHttpEngine(http_settings(url + "/v1/"))
        await engine.start()
        (answer,) = await run(engine, CHAT, [chat_body()])
        await engine.stop()
    assert answer.status_code == 200


async def test_concurrency_limit_holds_across_calls() -> None:
    upstream = Upstream("m", latency_s=0.01)
    async with engine_for(upstream, concurrency=5) as engine:
        await asyncio.gather(*(run(engine, CHAT, [chat_body()] * 7) for _ in range(4)))
    assert upstream.running_max == 5


async def test_one_slot_is_enough_for_many_calls() -> None:
    async with engine_for(Upstream("m"), concurrency=1) as engine:
        for _ in range(20):
            await asyncio.wait_for(run(engine, CHAT, [chat_body()] * 2), 5)


@pytest.mark.parametrize("status", [401, 402, 429, 503, 529])
async def test_upstream_that_cannot_serve_is_a_pool_failure(status: int) -> None:
    async with engine_for(Upstream("m", respond=always(status))) as engine:
        with pytest.raises(PoolUnavailableError) as raised:
            await engine.execute(CHAT, [chat_body()], lambda *_: pytest.fail("reported"))
    assert raised.value.facts["status_code"] == status


async def test_error_with_status_200_is_a_failure() -> None:
    body = b'{"error":{"code":400,"message":"no"}}'
    async with engine_for(Upstream("m", respond=always(200, body))) as engine:
        (answer,) = await run(engine, CHAT, [chat_body()])
        assert answer == EngineAnswer(400, body)
        assert await engine.serve(CHAT, chat_body(), None) == answer


async def test_pool_failure_with_status_200_is_a_pool_failure() -> None:
    body = b'{"error":{"code":429,"message":"later"}}'
    async with engine_for(Upstream("m", respond=always(200, body))) as engine:
        with pytest.raises(PoolUnavailableError) as raised:
            await engine.execute(CHAT, [chat_body()], lambda *_: pytest.fail("reported"))
    assert raised.value.facts["status_code"] == 429


@pytest.mark.parametrize("status", [502, 504])
async def test_gateway_without_server_charges_no_item(status: int) -> None:
    upstream = Upstream("m", respond=always(status))
    async with engine_for(upstream, upstream_failures_max=2, upstream_away_s_max=0) as engine:
        upstream.all_away = True
        for _ in range(5):
            with pytest.raises(PoolUnavailableError) as raised:
                await engine.execute(CHAT, [chat_body()] * 3, lambda *_: pytest.fail("reported"))
            assert raised.value.facts["status_code"] == status
        with pytest.raises(PoolUnavailableError):
            await engine.serve(CHAT, chat_body(), None)


@pytest.mark.parametrize("status", [502, 504])
async def test_gateway_timeout_of_one_item_fails_only_that_item(status: int) -> None:
    async def respond(_: web.Request, body: bytes) -> web.StreamResponse | None:
        return web.Response(status=status, body=b"<html>") if b"long" in body else None

    bodies = [chat_body(), chat_body("long"), *[chat_body()] * 10]
    async with engine_for(Upstream("m", respond=respond), concurrency=2) as engine:
        for _ in range(3):
            answers = await run(engine, CHAT, bodies)
            assert [a.status_code for a in answers] == [200, status, *[200] * 10]
            assert_error_envelope(answers[1], status)
            assert is_transient(answers[1])
        online = await engine.serve(CHAT, chat_body("long"), None)
        assert_error_envelope(online, status)
        answer = await engine.serve(CHAT, chat_body("long", stream=True), _unheard)
        assert_error_envelope(answer, status)


async def test_gateway_that_fails_every_item_becomes_unavailable() -> None:
    """As where the list of models comes from a cache: the charges are bounded as those of 500s."""
    upstream = Upstream("m", respond=always(504))
    async with engine_for(upstream, concurrency=1, upstream_failures_max=3) as engine:
        assert [a.status_code for a in await run(engine, CHAT, [chat_body()] * 2)] == [504, 504]
        for _ in range(3):
            with pytest.raises(PoolUnavailableError):
                await engine.execute(CHAT, [chat_body()], lambda *_: pytest.fail("reported"))


async def test_consecutive_failures_are_the_pools_until_a_success() -> None:
    answers = [500] * 6

    async def respond(_: web.Request, __: bytes) -> web.StreamResponse | None:
        return web.json_response({"error": {}}, status=answers.pop()) if answers else None

    upstream = Upstream("m", respond=respond)
    async with engine_for(upstream, concurrency=1, upstream_failures_max=3) as engine:
        assert [a.status_code for a in await run(engine, CHAT, [chat_body()] * 2)] == [500, 500]
        for _ in range(3):
            with pytest.raises(PoolUnavailableError):
                await engine.execute(CHAT, [chat_body()], lambda *_: pytest.fail("reported"))
        assert (
            await engine.serve(CHAT, chat_body(), None)
        ).status_code == 500  # its caller gets the failure
        assert (await run(engine, CHAT, [chat_body()]))[0].status_code == 200
        answers += [500, 500]
        assert [a.status_code for a in await run(engine, CHAT, [chat_body()] * 2)] == [500, 500]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_items_are_charged_while_online_calls_succeed(is_stream: bool) -> None:
    async def respond(_: web.Request, body: bytes) -> web.StreamResponse | None:
        return web.json_response({"error": {}}, status=500) if b"bad" in body else None

    async with engine_for(Upstream("m", respond=respond), upstream_failures_max=3) as engine:
        for _ in range(7):
            body = chat_body(stream=True) if is_stream else chat_body()
            emit = (lambda _: None) if is_stream else None
            assert (await engine.serve(CHAT, body, emit)).status_code == 200
            assert [a.status_code for a in await run(engine, CHAT, [b'"bad"'])] == [500]


async def test_item_refused_locally_does_not_close_the_breaker() -> None:
    upstream = Upstream("m", respond=always(500, b"{}"))
    async with engine_for(upstream, concurrency=1, upstream_failures_max=2) as engine:
        assert (await run(engine, CHAT, [chat_body()]))[0].status_code == 500
        assert (await run(engine, CHAT, [chat_body(stream=True)]))[0].status_code == 400
        with pytest.raises(PoolUnavailableError):
            await engine.execute(CHAT, [chat_body()], lambda *_: pytest.fail("reported"))


async def test_refused_connection_is_a_pool_failure() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        engine = OpenAIHttpEngine(
            http_settings(f"http://127.0.0.1:{unused.getsockname()[1]}", start_timeout_s=0.1)
        )
        with pytest.raises(PoolUnavailableError):
            await engine.start()
        with pytest.raises(PoolUnavailableError):
            await engine.execute(CHAT, [chat_body()] * 3, lambda *_: pytest.fail("reported"))
        await engine.stop()


async def test_pool_failure_ends_the_call_and_keeps_answers() -> None:
    reported: dict[int, EngineAnswer] = {}
    upstream: Upstream

    async def respond(_: web.Request, body: bytes) -> web.StreamResponse | None:
        if b"revoked" in body:
            while not reported:  # noqa: ASYNC110 - until the first answer is reported
                await asyncio.sleep(0.001)
            return web.Response(status=401)
        if b"slow" in body:
            await asyncio.sleep(3600)
        return None

    upstream = Upstream("m", respond=respond)
    bodies = [chat_body(text) for text in ("quick", "slow", "revoked", "slow", "slow")]
    async with engine_for(upstream, concurrency=4) as engine:
        with pytest.raises(PoolUnavailableError):
            async with asyncio.timeout(10):
                await engine.execute(CHAT, bodies, reported.__setitem__)
        assert reported.keys() == {0}
        # The places of the cancelled items are free again.
        answers = await asyncio.wait_for(run(engine, CHAT, [chat_body()] * 8), 10)
        assert {answer.status_code for answer in answers} == {200}


async def test_json_refusal_is_passed_on() -> None:
    body = b'{"error":{"message":"no","type":"t","param":null,"code":"c"}}'
    async with engine_for(Upstream("m", respond=always(422, body))) as engine:
        (answer,) = await run(engine, CHAT, [chat_body()])
    assert answer == EngineAnswer(422, body)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_json_refusal_without_envelope_gets_one(is_stream: bool) -> None:
    body = b'{"detail":"Unprocessable"}'
    async with engine_for(Upstream("m", respond=always(422, body))) as engine:
        emit = _unheard if is_stream else None
        answer = await engine.serve(CHAT, chat_body(stream=is_stream), emit)
    assert_error_envelope(answer, 422)
    assert content_of(answer)["error"]["message"] == "Unprocessable"


@pytest.mark.parametrize("status", [400, 404, 413, 500, 507])
async def test_refusal_without_json_gets_an_envelope(status: int) -> None:
    async with engine_for(Upstream("m", respond=always(status, b"<html>"))) as engine:
        (answer,) = await run(engine, CHAT, [chat_body()])
    assert_error_envelope(answer, status)
    assert b"html" not in answer.body


@pytest.mark.parametrize(
    ("respond", "code"),
    [
        (always(200, b"data: x\n\ndata: [DONE]\n\n"), "answer_not_json"),
        (always(200, b'{"a":"\xff"}'), "answer_not_json"),
        (always(200, b"[1]"), "answer_not_json"),
        (always(200, b""), "answer_not_json"),
        (always(307, b"", Location="http://127.0.0.1:9/"), "upstream_redirect"),
        (always(200, b'{"a":"' + b"x" * 5000 + b'"}'), "answer_too_large"),
    ],
)
async def test_unusable_answer_fails_the_item(respond: Respond, code: str) -> None:
    async with engine_for(Upstream("m", respond=respond), answer_bytes_max=4096) as engine:
        (answer,) = await run(engine, CHAT, [chat_body()])
    assert_error_envelope(answer, 502)
    assert content_of(answer)["error"]["code"] == code


async def test_pretty_printed_answer_becomes_one_line() -> None:
    pretty = b'{\r\n "usage": {\n  "prompt_tokens": 3, "completion_tokens": -4},\n "a": "\\n"\n}\n'
    async with engine_for(Upstream("m", respond=always(200, pretty))) as engine:
        (answer,) = await run(engine, CHAT, [chat_body()])
    assert content_of(answer)["a"] == "\n"
    assert (answer.input_tokens, answer.output_tokens) == (3, 0)


@pytest.mark.parametrize(("losses", "status"), [(1, 200), (2, 502)])
async def test_lost_connection_is_retried_once(losses: int, status: int) -> None:
    left = losses

    async def respond(request: web.Request, _: bytes) -> web.StreamResponse | None:
        nonlocal left
        if left == 0:
            return None
        left -= 1
        assert request.transport is not None
        request.transport.abort()
        return None

    async with engine_for(Upstream("m", respond=respond)) as engine:
        (answer,) = await run(engine, CHAT, [chat_body()])
    assert answer.status_code == status


async def test_hanging_item_fails_alone() -> None:
    async def respond(_: web.Request, body: bytes) -> web.StreamResponse | None:
        if b"hang" in body:
            await asyncio.sleep(3600)
        return None

    async with engine_for(Upstream("m", respond=respond), item_timeout_s=2) as engine:
        answers = await run(engine, CHAT, [chat_body(), chat_body("hang"), chat_body()])
    assert [answer.status_code for answer in answers] == [200, 504, 200]
    assert content_of(answers[1])["error"]["code"] == "item_timeout"


async def test_large_body_arrives_complete() -> None:
    upstream = Upstream("m")
    body = chat_body("x" * 3_000_000)
    async with engine_for(upstream) as engine:
        (answer,) = await run(engine, CHAT, [body])
    assert answer.status_code == 200
    assert upstream.received[0][1] == body
