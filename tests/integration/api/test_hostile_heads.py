"""Goal: heads, chunk headers and trailers are limited, and misuse closes the connection."""

import time

import pytest

from tests.integration.api.sites import OpenSite, Site
from tests.integration.api.wire import chunk, closes, connect, head, read_answer

HEAD_BYTES_MAX = 32 * 1024
CHUNKED = {"Content_Type": "application/json", "Transfer_Encoding": "chunked"}


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 40_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + b"y" * 40_000,
        b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET http:// HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /v1/batches HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"GET /healthz HTTP/9.9\r\nHost: a\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nX : a\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"GET /v1/files HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 200_000,
        b"POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ],
)
def test_an_invalid_or_large_head_closes_the_connection(site: Site, raw: bytes) -> None:
    with connect(site) as connection:
        connection.sendall(raw)
        answer = read_answer(connection)
        assert closes(connection)

    assert answer.status == 400
    assert answer.error()["code"] == "invalid_http"
    wanted = "too large" if len(raw) > HEAD_BYTES_MAX else "not valid HTTP"
    assert wanted in (answer.error()["message"] or "")


def test_a_head_in_many_pieces_is_limited(site: Site) -> None:
    with connect(site) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n")
        answer = None
        for _ in range(200):
            connection.sendall(b"X: " + b"y" * 1000 + b"\r\n")
            time.sleep(0.001)
            connection.settimeout(0.0)
            try:
                connection.recv(1, 2)  # MSG_PEEK
            except BlockingIOError:
                connection.settimeout(20)
                continue
            connection.settimeout(20)
            answer = read_answer(connection)
            break

    assert answer is not None
    assert answer.status == 400


@pytest.mark.parametrize("what", ["extension", "trailers", "one trailer"])
def test_chunk_headers_and_trailers_are_limited(site: Site, what: str) -> None:
    begun = head(site, "/v1/batches", **CHUNKED) + chunk(b"{")
    endless = {
        "extension": b"5;" + b"x" * 1_000_000,
        "trailers": b"0\r\n" + b"X: y\r\n" * 200_000,
        "one trailer": b"0\r\nX: " + b"y" * 1_000_000,
    }[what]
    with connect(site) as connection:
        connection.sendall(begun)
        try:
            connection.sendall(endless)
        except OSError:
            return  # cut while it still sent
        assert closes(connection)


def test_trailers_do_not_become_headers(site: Site) -> None:
    with connect(site) as connection:
        connection.sendall(
            head(site, "/v1/batches", **CHUNKED)
            + chunk(b"{}")
            + b"0\r\nAuthorization: Bearer sk-none\r\nContent-Type: text/plain\r\n\r\n"
        )
        answer = read_answer(connection)
        assert answer.status == 400
        assert answer.error()["code"] == "invalid_type"
        connection.sendall(head(site, "/v1/models", "GET"))  # and the connection goes on
        assert read_answer(connection).status == 200


def test_pipelined_requests_are_limited(site: Site) -> None:
    request = head(site, "/healthz", "GET")
    with connect(site) as connection:
        connection.sendall(request * 5)
        received = b""
        while received.count(b'{"status":"ok"}') < 5:
            received += connection.recv(65536)
    with connect(site) as connection:
        connection.sendall(request * 500)
        assert closes(connection)


def test_an_unknown_upgrade_is_ignored(site: Site) -> None:
    upgrade = {"Upgrade": "h2c", "Connection": "Upgrade, HTTP2-Settings", "HTTP2_Settings": "AAA"}
    with connect(site) as connection:
        connection.sendall(head(site, "/v1/models", "GET", **upgrade))
        assert read_answer(connection).status == 200
        connection.sendall(head(site, "/v1/models", "GET"))
        assert read_answer(connection).status == 200
    with connect(site) as connection:
        kind = {"Content_Type": "application/json", "Content_Length": "2"}
        connection.sendall(head(site, "/v1/batches", **kind, **upgrade) + b"{}")
        answer = read_answer(connection)
        assert answer.error()["code"] == "invalid_type"
        connection.sendall(head(site, "/v1/models", "GET", **upgrade))
        assert read_answer(connection).status == 200
        connection.sendall(b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n")
        assert read_answer(connection).status == 400
        assert closes(connection)


def test_an_idle_connection_is_closed_after_its_timeout(open_site: OpenSite) -> None:
    site = open_site(head_timeout_s=0.4, keep_alive_s=5)
    with connect(site) as connection:
        connection.sendall(head(site, "/v1/models", "GET"))
        read_answer(connection)
        time.sleep(0.5)  # longer than a head may take
        connection.sendall(head(site, "/v1/models", "GET"))
        assert read_answer(connection).status == 200
        began_s = time.monotonic()
        assert closes(connection)
        assert time.monotonic() - began_s > 0.5
