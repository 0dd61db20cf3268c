"""Goal: unread responses hold slots but no memory; a slow reader is cut off and causes no crash."""

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import REGISTRY
from starlette.types import Receive, Scope, Send

from api.http import uvicorn_server
from api.http.middleware import RequestEnvelope, WriteDeadline
from api.http.uvicorn_server import HttpProtocol, http_server
from api.settings import ApiSettings
from gpu_consumers.payloads.bodies import store_body
from tests.integration.api.answers import file_id
from tests.integration.api.online_site import ASK, ENDPOINT, OpenOnline
from tests.integration.api.pool import PlayedPool, good_end
from tests.integration.api.sites import OpenSite
from tests.integration.api.wire import closes, connect, head, json_post
from tests.support.until import until
from topics.records.records import Chunk, ReplyEnd

PIECE = b'{"x":"' + b"y" * 10_000 + b'"}'
STREAM = json.dumps({**ASK, "stream": True}).encode()
WHOLE = json.dumps(ASK).encode()
SIZE = 40_000_000  # more than the sockets hold


def cut_count(route: str = ENDPOINT, method: str = "POST") -> float:
    labels = {"route": route, "method": method, "status": "cut"}
    return REGISTRY.get_sample_value("millrace_api_requests_total", labels) or 0.0


def received_bytes(connection: socket.socket) -> int:
    """Read until the end of a connection and return the number of bytes."""
    received = 0
    with suppress(ConnectionResetError):
        while data := connection.recv(1 << 20):
            received += len(data)
    return received


def test_a_client_that_reads_nothing_is_cut_off_by_its_buffer(open_online: OpenOnline) -> None:
    online = open_online(stream_buffer_bytes=100_000)
    pool = online.pool

    def script(pool: PlayedPool, chunk: Chunk) -> None:
        for _ in range(3000):
            if pool.aborted(chunk.job.job_id):
                return
            pool.reply(chunk, pieces=[PIECE])
            time.sleep(0.0005)

    pool.script = script
    with connect(online.site) as connection:
        connection.sendall(json_post(online.site, ENDPOINT, STREAM))
        chunk = pool.only_chunk()
        pool.wait_for(lambda: pool.aborted(chunk.job.job_id))
        received = b""
        while data := connection.recv(1 << 20):
            received += data

    events = received.partition(b"\r\n\r\n")[2].replace(b"\r\n", b"")
    assert b'"code":"slow_reader"' in events[-1000:]
    assert b"[DONE]" not in events
    assert events.count(b"y" * 10_000) < 3000


def test_a_client_that_pauses_gets_the_whole_stream(open_online: OpenOnline) -> None:
    online = open_online(stream_buffer_bytes=64 * 1024 * 1024)
    count = 1000

    def script(pool: PlayedPool, chunk: Chunk) -> None:
        for _ in range(count):
            pool.reply(chunk, pieces=[PIECE])
        pool.reply(chunk, end=good_end(b""))

    online.pool.script = script
    with online.client.stream("POST", ENDPOINT, json=ASK | {"stream": True}) as answer:
        time.sleep(1)  # the hesitation itself
        received = answer.read()

    assert received.count(PIECE) == count
    assert received.count(b"data: [DONE]") == 1


def test_an_unread_response_is_dropped_and_frees_its_slot(open_online: OpenOnline) -> None:
    cut_before = cut_count()
    online = open_online(slow_reader_s=0.3)

    def script(pool: PlayedPool, chunk: Chunk) -> None:
        key = store_body(online.site.objects, chunk.job.job_id, b"x" * SIZE)
        pool.reply(chunk, end=ReplyEnd(200, b"", body_key=key))

    online.pool.script = script
    with connect(online.site) as connection:
        connection.sendall(json_post(online.site, ENDPOINT, WHOLE))
        assert connection.recv(4) == b"HTTP"
        assert REGISTRY.get_sample_value("millrace_online_calls_open") == 1
        until(lambda: cut_count() > cut_before)
        assert REGISTRY.get_sample_value("millrace_online_calls_open") == 0
        assert received_bytes(connection) < SIZE


def test_an_unread_download_is_dropped(open_site: OpenSite) -> None:
    site = open_site(download_idle_timeout_s=0.3)
    with site.client() as client:
        name = file_id(client, b"x" * SIZE)
    crashes = REGISTRY.get_sample_value("millrace_api_crashes_total")
    downloads_cut = partial(cut_count, route="/v1/files/{file_id}/content", method="GET")
    cut_before = downloads_cut()
    with connect(site) as connection:
        connection.sendall(head(site, f"/v1/files/{name}/content", "GET"))
        assert connection.recv(4) == b"HTTP"
        until(lambda: downloads_cut() > cut_before)
        assert received_bytes(connection) < SIZE
    assert REGISTRY.get_sample_value("millrace_api_crashes_total") == crashes


LARGE = b"x" * 40_000_000  # more than the sockets hold
_BODIES = {"/small": b"small", "/medium": b"x" * 60_000}  # for the transport none is behind
GET_LINE = b"GET /%b HTTP/1.1\r\nHost: test\r\n\r\n"


async def answer(scope: Scope, _: Receive, send: Send) -> None:
    if scope["type"] != "http":
        return
    body = _BODIES.get(scope["path"], LARGE)
    length = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    if scope["path"] == "/stream":  # which bounds by itself what waits; this one does not
        await send({"type": "http.response.body", "body": body[:1], "more_body": True})
        body = body[1:]
    await send({"type": "http.response.body", "body": body})


@contextmanager
def serving(idle_timeout_s: float, *, sent_bytes: int | None = None) -> Iterator[tuple[str, int]]:
    """Serve `answer` with two slots; `sent_bytes` is about what the kernel takes of it."""
    write_deadline = WriteDeadline(1024 * 1024, idle_timeout_s)
    app = RequestEnvelope(
        answer, in_flight_max=2, online_in_flight_max=1, write_deadline=write_deadline
    )
    listener = socket.create_server(("127.0.0.1", 0))
    if sent_bytes is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sent_bytes)
    server = http_server(app, ApiSettings(shutdown_grace_s=1))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        until(lambda: server.started)
        yield listener.getsockname()
    finally:
        server.should_exit = True
        thread.join(20)


def asking(address: tuple[str, int], *paths: bytes) -> socket.socket:
    connection = socket.create_connection(address, 40)
    connection.sendall(b"".join(GET_LINE % path for path in paths))
    return connection


def status(address: tuple[str, int]) -> int:
    with closing(asking(address, b"small")) as connection:
        return int(connection.recv(12)[-3:])


@pytest.mark.parametrize("paths", [(b"large",), (b"large", b"small"), (b"stream", b"small")])
def test_an_unread_response_keeps_its_slot_until_it_is_dropped(
    paths: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Requests after it on its connection are dropped with it, without an error."""
    with serving(0.5) as address:
        unread = [asking(address, *paths) for _ in range(2)]
        until(lambda: status(address) == 503)
        # Both: reading below would let the other one go on.
        until(lambda: REGISTRY.get_sample_value("millrace_api_requests_in_flight") == 0)
        assert status(address) == 200
        for connection in unread:
            with closing(connection):
                assert closes(connection)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_client_that_disconnects_with_pipelined_requests_causes_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(5.0) as address:
        for _ in range(20):
            connection = asking(address, b"large", b"small")
            assert connection.recv(12).endswith(b"200")
            connection.close()
        until(lambda: REGISTRY.get_sample_value("millrace_api_requests_in_flight") == 0)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_response_that_is_read_in_time_is_complete() -> None:
    with serving(5.0) as address, closing(asking(address, b"large", b"small")) as connection:
        received = bytearray()
        while not received.endswith(b"small"):
            received += connection.recv(1 << 20)
    assert received.count(b"x") == len(LARGE) + received.count(b"x-request-id")


def end_an_answer(protocol: HttpProtocol) -> None:
    """As its request in HTTP/1.0 does, or one that says `Connection: close`."""
    protocol.transport.close()
    protocol.on_response_complete()


@pytest.mark.parametrize("left_bytes", [0, 1])
@pytest.mark.parametrize(
    "close",
    [
        HttpProtocol.timeout_keep_alive_handler,
        HttpProtocol._on_head_timeout,
        lambda protocol: protocol.send_400_response("This is not HTTP."),
        end_an_answer,
    ],
    ids=["idle", "slow head", "no HTTP", "last answer"],
)
def test_unread_bytes_of_a_closing_connection_are_dropped(
    close: Callable[[HttpProtocol], None], left_bytes: int
) -> None:
    steps: list[str] = []
    protocol = HttpProtocol.__new__(HttpProtocol)
    transport = SimpleNamespace(
        is_closing=lambda: "close" in steps,
        close=lambda: steps.append("close"),
        write=lambda _: None,
        get_write_buffer_size=lambda: left_bytes,
        abort=lambda: steps.append("abort"),
    )
    protocol.transport, protocol.cycle = cast(Any, transport), cast(Any, None)
    protocol.loop = cast(Any, SimpleNamespace(call_later=lambda _, call: call()))
    protocol.server_state = cast(Any, SimpleNamespace(total_requests=0))

    close(protocol)

    assert steps == ["close", "abort"][: 1 + left_bytes]


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_an_unread_last_response_is_dropped(
    version: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_server, "FLUSH_S", 0.2)
    has_ended = threading.Event()

    class Noticing(HttpProtocol):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            has_ended.set()

    monkeypatch.setattr(uvicorn_server, "HttpProtocol", Noticing)
    ask = b"GET /medium HTTP/%b\r\nHost: test\r\nConnection: close\r\n\r\n" % version
    with serving(60.0, sent_bytes=4096) as address, closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(address)
        connection.sendall(ask)
        assert has_ended.wait(20)
