"""Goal: an upstream's response to an item is the item's; everything else is the pool's failure."""

import asyncio
import socket

import msgspec
import pytest
from aiohttp import web

from core.errors import PoolUnavailableError
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_code_of, is_transient
from gpu_consumers.engines.openai_http.openai_http_engine import OpenAIHttpEngine
from tests.integration.engines.conformance import (
    CHAT,
    assert_error_envelope,
    chat_body,
    content_of,
    run,
)
from tests.integration.engines.upstream import (
    Respond,
    Upstream,
    engine_for,
    engine_of,
    http_settings,
    serve,
)
from tests.support.until import until_true


def always(status: int, body: bytes = b"", *, to: bytes = b"") -> Respond:
    """Answer the requests whose bodies contain `to`, and simulate the others."""

    async def respond(_: web.Request, given: bytes) -> web.StreamResponse | None:
        return web.Response(status=status, body=body) if to in given else None

    return respond


def _unheard(_: bytes) -> None:
    pytest.fail("emitted")


async def assert_unavailable(engine: OpenAIHttpEngine, status: int | None = None) -> None:
    with pytest.raises(PoolUnavailableError) as raised:
        await engine.execute(CHAT, [chat_body()] * 3, lambda *_: pytest.fail("reported"))
    assert status is None or raised.value.facts["status_code"] == status


@pytest.mark.parametrize("suffix", ["", "/v1/"])
async def test_body_is_sent_unchanged_with_the_key(suffix: str) -> None:
    upstream = Upstream("m")
    body = b'{ "messages" :[{"role":"user","content":"\xc3\xa9"}],  "seed": 1e2}'
    async with serve(upstream) as url, engine_of(url + suffix, upstream_api_key="secret") as engine:
        await run(engine, CHAT, [body])
    request, received = upstream.received[0]
    assert received == body
    assert request.path == CHAT
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.headers["Content-Type"] == "application/json"


async def test_upstream_gets_its_own_model_and_the_client_the_one_it_asked_for() -> None:
    upstream = Upstream("m")
    fields = b'"messages":[{"role":"user","content":"Hi."}]}'
    body, stream = b'{"model":"alias",' + fields, b'{"model":"alias","stream":true,' + fields
    events: list[bytes] = []
    async with engine_for(upstream, model_name="m") as engine:
        answers = [(await run(engine, CHAT, [body]))[0], await engine.serve(CHAT, body, None)]
        await engine.serve(CHAT, stream, events.append)
    assert [msgspec.json.decode(given)["model"] for _, given in upstream.received] == ["m"] * 3
    shown = [content_of(answer)["model"] for answer in answers]
    shown += [msgspec.json.decode(event)["model"] for event in events]
    assert set(shown) == {"alias"}


async def test_upstream_gets_no_item_of_an_adapter() -> None:
    upstream = Upstream("m")
    found: dict[int, EngineAnswer] = {}
    async with engine_for(upstream) as engine:
        await engine.execute(CHAT, [chat_body()] * 2, found.__setitem__, "a1b2")
        answers = [found[0], found[1], await engine.serve(CHAT, chat_body(), None, None, "a1b2")]
    assert [error_code_of(answer.body) for answer in answers] == ["adapter_unknown"] * 3
    assert upstream.received == []


RATE_LIMITED = always(200, b'{"error":{"code":429,"message":"later"}}')


@pytest.mark.parametrize(
    ("respond", "status"),
    [*((always(status), status) for status in (401, 402, 429, 503, 529)), (RATE_LIMITED, 429)],
)
async def test_upstream_that_cannot_serve_is_a_pool_failure(respond: Respond, status: int) -> None:
    async with engine_for(Upstream("m", respond=respond)) as engine:
        await assert_unavailable(engine, status)


@pytest.mark.parametrize("status", [502, 504])
async def test_gateway_without_server_charges_no_item(status: int) -> None:
    upstream = Upstream("m", respond=always(status))
    async with engine_for(upstream, upstream_failures_max=2, upstream_away_s_max=0) as engine:
        upstream.all_away = True
        for _ in range(5):
            await assert_unavailable(engine, status)
        with pytest.raises(PoolUnavailableError):
            await engine.serve(CHAT, chat_body(), None)


@pytest.mark.parametrize("status", [502, 504])
async def test_gateway_timeout_of_one_item_fails_only_that_item(status: int) -> None:
    respond = always(status, b"<html>", to=b"long")
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


@pytest.mark.parametrize("status", [500, 504])
async def test_consecutive_failures_are_the_pools_until_a_success(status: int) -> None:
    """Also of a gateway whose list of models comes from a cache."""
    answers = [status] * 6

    async def respond(_: web.Request, __: bytes) -> web.StreamResponse | None:
        return web.json_response({"error": {}}, status=answers.pop()) if answers else None

    upstream = Upstream("m", respond=respond)
    async with engine_for(upstream, concurrency=1, upstream_failures_max=3) as engine:
        assert [a.status_code for a in await run(engine, CHAT, [chat_body()] * 2)] == [status] * 2
        for _ in range(3):
            await assert_unavailable(engine)
        online = await engine.serve(CHAT, chat_body(), None)
        assert online.status_code == status  # its caller gets the failure
        assert (await run(engine, CHAT, [chat_body()]))[0].status_code == 200
        answers += [status, status]
        assert [a.status_code for a in await run(engine, CHAT, [chat_body()] * 2)] == [status] * 2


@pytest.mark.parametrize("is_stream", [False, True])
async def test_items_are_charged_while_online_calls_succeed(is_stream: bool) -> None:
    respond = always(500, b'{"error":{}}', to=b"bad")
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
        await assert_unavailable(engine)


async def test_refused_connection_is_a_pool_failure() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        engine = OpenAIHttpEngine(
            http_settings(f"http://127.0.0.1:{unused.getsockname()[1]}", start_timeout_s=0.1)
        )
        with pytest.raises(PoolUnavailableError):
            await engine.start()
        await assert_unavailable(engine)
        await engine.stop()


async def test_pool_failure_ends_the_call_and_keeps_answers() -> None:
    reported: dict[int, EngineAnswer] = {}
    upstream: Upstream

    async def respond(_: web.Request, body: bytes) -> web.StreamResponse | None:
        if b"revoked" in body:
            await until_true(lambda: reported)
            return web.Response(status=401)
        if b"slow" in body:
            await asyncio.sleep(3600)
        return None

    upstream = Upstream("m", respond=respond)
    bodies = [chat_body(text) for text in ("quick", "slow", "revoked", "slow", "slow")]
    async with engine_for(upstream, concurrency=4) as engine:
        with pytest.raises(PoolUnavailableError):
            async with asyncio.timeout(20):
                await engine.execute(CHAT, bodies, reported.__setitem__)
        assert reported.keys() == {0}
        # The places of the cancelled items are free again.
        answers = await asyncio.wait_for(run(engine, CHAT, [chat_body()] * 8), 20)
        assert {answer.status_code for answer in answers} == {200}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_json_refusal_without_envelope_gets_one(is_stream: bool) -> None:
    body = b'{"detail":"Unprocessable"}'
    async with engine_for(Upstream("m", respond=always(422, body))) as engine:
        emit = _unheard if is_stream else None
        answer = await engine.serve(CHAT, chat_body(stream=is_stream), emit)
    assert_error_envelope(answer, 422)
    assert content_of(answer)["error"]["message"] == "Unprocessable"
