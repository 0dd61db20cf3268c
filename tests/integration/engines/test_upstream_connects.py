"""Goal: an upstream that cannot be reached or trusted is a pool failure with its cause."""

import asyncio
import ssl
from pathlib import Path

import pytest

from core.errors import PoolUnavailableError, SettingsError
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.openai_http.openai_http_engine import OpenAIHttpEngine
from gpu_consumers.engines.openai_http.origin import Origin
from tests.integration.engines.conformance import CHAT, chat_body, content_of, run
from tests.integration.engines.raw_server import ANSWER, Peer, raw_server, sending
from tests.integration.engines.upstream import engine_of, http_settings
from tests.support.certificates import write_certificate


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("tls"), "server")


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


async def cause_of(engine: OpenAIHttpEngine) -> object:
    with pytest.raises(PoolUnavailableError) as raised:
        await engine.execute(CHAT, [chat_body()], lambda *_: pytest.fail("reported"))
    await engine.stop()
    return raised.value.facts["cause"]


async def test_untrusted_certificate_is_a_pool_failure(tls: ssl.SSLContext) -> None:
    async with raw_server(sending(ANSWER), tls) as server:
        engine = OpenAIHttpEngine(http_settings(server.url, start_timeout_s=0.2))
        with pytest.raises(PoolUnavailableError):
            await engine.start()
        assert await cause_of(engine) == "SSLCertVerificationError"


async def test_certificate_must_name_the_host(
    tls: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with raw_server(sending(ANSWER), tls) as server:
        url = server.url.replace("localhost", "127.0.0.2")
        assert await cause_of(OpenAIHttpEngine(http_settings(url))) in (
            "SSLCertVerificationError",
            "ConnectionRefusedError",
        )


async def test_tls_carries_small_and_large_items(
    tls: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    large = chat_body("x" * 5_000_000)
    async with raw_server(sending(ANSWER), tls) as server:
        async with engine_of(server.url, concurrency=4) as engine:
            answers = await run(engine, CHAT, [chat_body(), large] * 10)
        assert answers == [EngineAnswer(200, b"{}")] * 20
        assert len(server.peers) <= 4


@pytest.mark.parametrize("sends", [b"", b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n"])
async def test_server_without_tls_is_a_pool_failure(sends: bytes) -> None:
    async def handle(peer: Peer) -> None:
        await peer.send(sends)

    async with raw_server(handle) as server:
        url = server.url.replace("http:", "https:")
        cause = await cause_of(OpenAIHttpEngine(http_settings(url)))
        assert cause in {"SSLError", "SSLEOFError", "ConnectionResetError"}


async def test_silent_handshake_ends_with_the_connect_or_the_item_timeout() -> None:
    async with raw_server(Peer.gone) as server:
        url = server.url.replace("http:", "https:")
        settings = http_settings(url, connect_timeout_s=0.3)
        assert await cause_of(OpenAIHttpEngine(settings)) == "TimeoutError"
        engine = OpenAIHttpEngine(http_settings(url, item_timeout_s=0.3))
        (answer,) = await run(engine, CHAT, [chat_body()])
        await engine.stop()
    assert content_of(answer)["error"]["code"] == "item_timeout"


async def test_unknown_host_is_a_pool_failure() -> None:
    engine = OpenAIHttpEngine(http_settings("http://nowhere.invalid"))
    assert await cause_of(engine) == "gaierror"


async def test_other_addresses_of_the_host_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def addresses(_: Origin) -> list[str]:
        return ["127.0.0.3", "127.0.0.1"]  # the server listens on the second alone

    monkeypatch.setattr(Origin, "addresses", addresses)
    async with raw_server(sending(ANSWER)) as server:
        engine = OpenAIHttpEngine(http_settings(server.url))
        assert await run(engine, CHAT, [chat_body()] * 8) == [EngineAnswer(200, b"{}")] * 8
        await engine.stop()


async def test_cancelled_connect_leaks_nothing() -> None:
    connected = asyncio.Event()

    async def handle(peer: Peer) -> None:
        connected.set()
        await peer.gone()
        closed.set()

    closed = asyncio.Event()
    async with raw_server(handle) as server:
        engine = OpenAIHttpEngine(http_settings(server.url.replace("http:", "https:")))
        call = asyncio.create_task(run(engine, CHAT, [chat_body()]))
        await asyncio.wait_for(connected.wait(), 20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(closed.wait(), 20)
        await engine.stop()


@pytest.mark.parametrize(
    ("url", "key"),
    [("http://h:port", "k"), ("http://me:secret@h", "k"), ("http://h", "sec\r\nret")],
)
def test_unusable_settings_are_rejected_before_a_request(url: str, key: str) -> None:
    with pytest.raises(SettingsError) as raised:
        OpenAIHttpEngine(http_settings(url, upstream_api_key=key))
    assert "sec" not in str(raised.value)
