"""Goal: however a call is encoded, its response is correct or a refusal with the envelope."""

import json
import socket
from contextlib import ExitStack

import pytest

from api.online.memory_limits import MemoryLimit, body_memory_limit
from tests.integration.api.answers import refused
from tests.integration.api.online_site import ASK, ENDPOINT, Online, OpenOnline
from tests.integration.api.pool import say_nothing
from tests.integration.api.sites import Site
from tests.integration.api.wire import chunk, closes, connect, json_post, read_answer

MIB = 1024 * 1024
WAITS = {"Expect": "100-continue"}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
BODY = json.dumps(ASK).encode()
STREAM = json.dumps({**ASK, "stream": True}).encode()
EVENTS = b'data: {"n":0}\n\ndata: {"n":1}\n\ndata: {"n":2}\n\ndata: [DONE]\n\n'


def call(site: Site, body: bytes = BODY, **headers: str) -> bytes:
    return json_post(site, ENDPOINT, body, **headers)


def until_closed(connection: socket.socket) -> tuple[bytes, bytes]:
    """Return head and body of an answer that ends with its connection."""
    received = b""
    while data := connection.recv(65536):
        received += data
    top, _, body = received.partition(b"\r\n\r\n")
    return top.lower(), body


@pytest.mark.timeout(300)
def test_valid_encodings_of_a_call(online: Online) -> None:
    site = online.site
    chunked = {"Transfer_Encoding": "chunked"}
    in_chunks = call(site, b"", **chunked) + chunk(BODY[:7]) + chunk(BODY[7:]) + b"0\r\n\r\n"
    names = call(site).replace(b"Content-", b"cONTENT-").replace(b"Authorization", b"AUTHORIZATION")
    odd = {"X_Name": "caf\xe9", "traceparent": "\xe9", "Prefer": "wait=\xb2"}
    ways = [in_chunks, names, call(site, BODY, **odd), call(site, b"\r\n" + BODY)]
    with connect(site) as connection:
        for way in ways:
            connection.sendall(way)
            assert json.loads(read_answer(connection).body) == {"asked": ASK}
        connection.sendall(call(site) * 3)
        received = b""
        while received.count(b'{"asked"') < 3:
            received += connection.recv(65536)
    with connect(site) as connection:
        connection.sendall(call(site, b"", Content_Length=str(len(BODY)), Expect="100-continue"))
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert read_answer(connection).status == 200
    assert len(online.pool.chunks) == len(ways) + 4


@pytest.mark.timeout(300)
def test_http_1_0_clients(online: Online) -> None:
    site = online.site
    for body, answer in ((BODY, b'{"asked":' + BODY + b"}"), (STREAM, EVENTS)):
        with connect(site) as connection:
            connection.sendall(call(site, body).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
            top, received = until_closed(connection)
        assert received == answer
        assert top.startswith(b"http/1.1 200")
        assert b"transfer-encoding" not in top
        assert b"connection: close" in top


@pytest.mark.timeout(300)
def test_bodies_that_differ_from_their_head(online: Online) -> None:
    site = online.site
    gzipped = call(site, b"", Transfer_Encoding="gzip, chunked") + chunk(BODY) + b"0\r\n\r\n"
    refusals = [
        (gzipped, 415, "unsupported_content_encoding"),
        (call(site, b"", Content_Length="5000000"), 413, "body_too_large"),
        (call(site, BODY + BODY), 400, "invalid_json"),
        (call(site, BODY + b"\0"), 400, "invalid_json"),
        (call(site, b"\xef\xbb\xbf" + BODY), 400, "invalid_json"),
        (call(site, b"", Content_Length="-5"), 400, "invalid_http"),
        (call(site, b"", Content_Length="9" * 30), 400, "invalid_http"),
        (call(site, b"", Transfer_Encoding="chunked") + b"zz\r\n", 400, "invalid_http"),
        (call(site, BODY, X_Request_Timeout_Ms="\xb2\xb3"), 400, "invalid_value"),
    ]
    for sent, status, code in refusals:
        with connect(site) as connection:
            connection.sendall(sent)
            answer = read_answer(connection)
        assert (answer.status, answer.error()["code"]) == (status, code), sent[-80:]
    with connect(site) as connection:  # a body that stops half way, and its client with it
        connection.sendall(call(site, BODY, Content_Length="500"))
        connection.shutdown(socket.SHUT_WR)
        assert closes(connection)
    assert online.pool.chunks == []


@pytest.mark.timeout(300)
def test_hostile_headers_of_a_call(online: Online) -> None:
    """Each is refused as what it is, or means nothing; of two of a name the last one counts."""
    timeout, prefer, key = b"x-request-timeout-ms", b"prefer", b"idempotency-key"
    refusals = [
        [(timeout, b"+5")],
        [(timeout, b"60000"), (timeout, b"NaN")],
        [(key, b"a\tb")],
        [(key, b"a"), (key, b"")],
    ]
    taken = [
        [(timeout, b"NaN"), (timeout, b"60000")],
        [(prefer, b"wait=5,wait=6")],
        [(prefer, b"wait=5"), (prefer, b"wait=NaN")],
        *([(key, value)] for value in (b"\xff\xfe", b"\xe2\x80\xae")),
        [(key, b"first"), (key, b"last")],
    ]
    for headers in refusals:
        answer = online.client.post(ENDPOINT, json=ASK, headers=headers)
        code = "invalid_value" if headers[0][0] == timeout else "idempotency_key_invalid"
        assert refused(answer, 400)["code"] == code, headers
    for headers in taken:
        answer = online.client.post(ENDPOINT, json=ASK, headers=headers)
        assert answer.status_code == 200, (headers, answer.text)
    assert len(online.pool.chunks) == len(taken)


@pytest.mark.timeout(300)
def test_a_disconnect_over_http_1_0_aborts_the_stream(online: Online) -> None:
    online.pool.script = lambda pool, chunk: pool.reply(chunk, pieces=[b"{}"])
    site = online.site
    with connect(site) as connection:
        connection.sendall(call(site, STREAM).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        received = b""
        while not received.endswith(b"data: {}\n\n"):
            received += connection.recv(65536)
    online.pool.script = say_nothing
    online.pool.wait_for(lambda: online.pool.aborted(online.pool.only_chunk().job.job_id))


@pytest.mark.timeout(300)
def test_a_disconnect_after_a_large_body_aborts_the_call(online: Online) -> None:
    """More than the server takes ahead of whoever reads it."""
    online.pool.script = say_nothing
    body = json.dumps({**ASK, "messages": [{"role": "user", "content": "x" * 200_000}]}).encode()
    with connect(online.site) as connection:
        connection.sendall(call(online.site, b"", Content_Length=str(len(body)), **WAITS))
        assert connection.recv(65536) == CONTINUE  # its route reads
        connection.sendall(body)
        asked = online.pool.only_chunk()
    online.pool.wait_for(lambda: online.pool.aborted(asked.job.job_id))


@pytest.mark.timeout(300)
def test_incomplete_bodies_block_only_their_tenant(
    open_online: OpenOnline, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[MemoryLimit] = []

    def remember(*given: int, **named: int) -> MemoryLimit:
        limits.append(body_memory_limit(*given, **named))
        return limits[-1]

    monkeypatch.setattr("api.online.asgi_app.body_memory_limit", remember)
    online = open_online(bodies_bytes_max=64 * MIB)
    site, sent = online.site, 4 * MIB - 1
    with ExitStack() as stalled, site.client() as mine, site.client(site.other_key) as other:
        for _ in range(8):  # all of a tenant's 32 MiB, but for 8 bytes
            connection = stalled.enter_context(connect(site))
            connection.sendall(call(site, b" " * sent, Content_Length=str(sent + 1)))
        online.pool.wait_for(lambda: limits[0]._free == 64 * MIB - 8 * sent)
        full = mine.post(ENDPOINT, json=ASK)
        assert (full.status_code, full.headers["retry-after"]) == (429, "1")
        assert full.json()["error"]["code"] == "queue_full"
        assert other.post(ENDPOINT, json=ASK).status_code == 200


@pytest.mark.timeout(300)
def test_a_tenant_may_use_half_of_the_calls_in_flight(open_online: OpenOnline) -> None:
    online = open_online(open_calls_max=1)
    site = online.site
    with connect(site) as idle, site.client() as mine, site.client(site.other_key) as other:
        idle.sendall(call(site, b"", Content_Length="9", **WAITS))
        assert idle.recv(65536) == CONTINUE
        full = mine.post(ENDPOINT, json=ASK)
        assert (full.status_code, full.json()["error"]["code"]) == (429, "slow_down")
        assert other.post(ENDPOINT, json=ASK).status_code == 200
        idle.sendall(b"x" * 9)
        assert read_answer(idle).status == 400
        assert mine.post(ENDPOINT, json=ASK).status_code == 200
