"""Goal: a slow reader is cut off, costs no more than its buffer, and causes no crash."""

import json
import socket
import time
from contextlib import suppress
from functools import partial

from prometheus_client import REGISTRY

from gpu_consumers.payloads.bodies import store_body
from tests.integration.api.answers import file_id
from tests.integration.api.online_site import ASK, ENDPOINT, OpenOnline
from tests.integration.api.pool import PlayedPool, good_end
from tests.integration.api.sites import OpenSite
from tests.integration.api.wire import connect, head, json_post
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
