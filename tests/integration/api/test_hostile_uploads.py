"""Goal: no upload costs more than a response with the error envelope."""

import socket
import time
from dataclasses import replace

import httpx
import pytest
import sqlalchemy as sa

from jobs.tables.files import files
from tenancy.api_keys import revoke_key
from tenancy.key_secrets import NewKey
from tests.integration.api.answers import ok, refused, upload
from tests.integration.api.sites import OpenSite, Site
from tests.integration.api.wire import (
    END,
    chunk,
    closes,
    connect,
    form_head,
    head,
    part,
    read_answer,
    send_form,
)
from tests.support.until import until

FILE = part("file", b"{}\n", '; filename="in.jsonl"')
PURPOSE = part("purpose", b"batch")


def until_empty(site: Site) -> None:
    """Wait until no byte of an upload is left in the store."""
    until(lambda: not site.stored())


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (PURPOSE + FILE, None),  # no end
        (b"", None),
        (PURPOSE + END, "file"),
        (FILE + END, "purpose"),
        (FILE + part("purpose", b"nope") + END, "purpose"),
    ],
)
def test_an_invalid_form_stores_nothing(site: Site, content: bytes, param: str | None) -> None:
    answer = send_form(site, content)

    assert answer.status == 400
    assert answer.error()["param"] == param
    until_empty(site)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 415),
        ("multipart/form-data", 400),
        ("multipart/form-data; boundary=", 400),
    ],
)
def test_other_media_types_are_no_form(site: Site, kind: str, status: int) -> None:
    with connect(site) as connection:
        connection.sendall(head(site, Content_Type=kind, Content_Length="2") + b"{}")
        assert read_answer(connection).status == status


def test_a_key_revoked_during_the_upload_stores_nothing(open_site: OpenSite) -> None:
    site = open_site(key_cache_s=0)
    with connect(site) as connection:
        connection.sendall(form_head(site, Expect="100-continue"))
        assert connection.recv(100).startswith(b"HTTP/1.1 100")  # the key was good
        with site.engine.begin() as database:
            assert revoke_key(database, site.key.key_id)
        connection.sendall(chunk(PURPOSE + FILE + END) + b"0\r\n\r\n")
        answer = read_answer(connection)

    assert (answer.status, answer.error()["code"]) == (401, "invalid_api_key")
    until_empty(site)
    with site.engine.connect() as database:
        assert database.scalar(sa.select(sa.func.count()).select_from(files)) == 0


def test_a_compressed_upload_is_refused(site: Site) -> None:
    assert send_form(site, PURPOSE + FILE + END, Content_Encoding="gzip").status == 415


def test_a_file_above_the_limit_is_refused(site: Site, client: httpx.Client) -> None:
    ok(upload(client, b"x" * 1_000_000))
    (kept,) = site.stored()
    error = refused(upload(client, b"x" * 1_000_001), 413)
    assert error["code"] == "file_too_large"
    refused(upload(client, b"x" * 3_000_000), 413)  # by its declared length

    with connect(site) as connection:  # without a length: cut as it grows
        begun = PURPOSE + part("file", b"x" * 2_000_000, '; filename="f"')
        connection.sendall(form_head(site) + chunk(begun) + b"0\r\n\r\n")
        assert read_answer(connection).status == 413
    assert site.stored() == [kept]


def test_expect_100_continue_is_refused_early(site: Site) -> None:
    with connect(site) as connection:
        connection.sendall(form_head(site, Content_Length="999999999", Expect="100-continue"))
        assert read_answer(connection).status == 413


def test_a_disconnect_stores_nothing(site: Site, client: httpx.Client) -> None:
    with connect(site) as connection:
        begun = PURPOSE + part("file", b"x" * 500_000, '; filename="f"')
        connection.sendall(form_head(site) + chunk(begun))
    with connect(site) as connection:
        connection.sendall(form_head(site, Content_Length="100000") + PURPOSE)
    assert ok(client.get("/v1/files"))["data"] == []
    until_empty(site)


def test_slow_and_silent_uploads_are_refused(open_site: OpenSite) -> None:
    site = open_site(upload_idle_timeout_s=0.6)
    with connect(site) as slow, connect(site) as silent:
        silent.sendall(form_head(site) + chunk(PURPOSE))
        slow.sendall(form_head(site) + chunk(PURPOSE + part("file", b"x", '; filename="f"')))
        slow.settimeout(0.05)
        began_s = time.monotonic()
        while True:
            try:
                answer = read_answer(slow)
                break
            except TimeoutError:
                assert time.monotonic() - began_s < 30
                slow.sendall(chunk(b"x"))
        assert answer.status == 408
        assert read_answer(silent).status == 408
    until_empty(site)


def test_an_upload_may_take_several_windows(open_site: OpenSite) -> None:
    """As long as it brings enough in each."""
    site = open_site(upload_idle_timeout_s=1)
    with connect(site) as connection:
        connection.sendall(form_head(site) + chunk(PURPOSE))
        connection.sendall(chunk(part("file", b"", '; filename="f"').removesuffix(b"\r\n")))
        began_s = time.monotonic()
        while time.monotonic() - began_s < 2.5:
            connection.sendall(chunk(b"x" * 1000))
            time.sleep(0.01)
        connection.sendall(chunk(b"\r\n" + END) + b"0\r\n\r\n")
        assert read_answer(connection).status == 200


def test_an_endless_json_body_is_refused(open_site: OpenSite) -> None:
    site = open_site(json_body_timeout_s=0.5)
    kind = {"Content_Type": "application/json", "Content_Length": "100"}
    with connect(site) as connection:
        connection.sendall(head(site, "/v1/batches", **kind) + b"{")
        assert read_answer(connection).status == 408


def test_a_slow_head_closes_the_connection(open_site: OpenSite) -> None:
    site = open_site(head_timeout_s=0.5)
    with connect(site) as connection, connect(site) as mute:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        assert closes(connection)
        assert closes(mute)


def test_a_refused_client_frees_its_slot_while_it_sends_on(open_site: OpenSite) -> None:
    site = open_site(head_timeout_s=0.5, file_bytes_max=1000)
    with connect(site) as connection:
        connection.sendall(form_head(site, Content_Length="99999999") + PURPOSE)
        assert read_answer(connection).status == 413
        connection.sendall(b"x")
        assert closes(connection)


def test_an_invalid_chunk_in_an_upload(site: Site) -> None:
    with connect(site) as connection:
        connection.sendall(form_head(site) + chunk(PURPOSE) + b"not a chunk\r\n")
        assert read_answer(connection).status == 400
    until_empty(site)


def assert_share_is_used(answer: httpx.Response) -> None:
    """The rest is for other tenants."""
    error = refused(answer, 429)
    assert (error["type"], error["code"]) == ("rate_limit_exceeded", "slow_down")
    assert 1 <= int(answer.headers["retry-after"]) <= 60


def hold_an_upload(site: Site, connection: socket.socket, key: NewKey | None = None) -> None:
    """Begin an upload and return once the server asks for its body."""
    asked = replace(site, key=key or site.key)
    connection.sendall(form_head(asked, Expect="100-continue"))
    assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
    connection.sendall(chunk(PURPOSE))


def test_a_tenant_may_use_half_of_the_uploads(open_site: OpenSite) -> None:
    site = open_site(uploads_max=3)
    with connect(site) as first, connect(site) as second, site.client() as client:
        for connection in (first, second):
            hold_an_upload(site, connection)
        assert_share_is_used(upload(client))
        with site.client(site.other_key) as other, connect(site) as third:
            ok(upload(other))
            hold_an_upload(site, third, site.other_key)
            assert refused(upload(other), 503)["code"] == "slow_down"
        first.sendall(chunk(FILE + END) + b"0\r\n\r\n")
        assert read_answer(first).status == 200
        ok(upload(client))


def test_a_tenant_may_use_half_of_the_requests_in_flight(open_site: OpenSite) -> None:
    site = open_site(requests_in_flight_max=3)
    kind = {"Content_Type": "application/json", "Content_Length": "2", "Expect": "100-continue"}
    with connect(site) as first, connect(site) as second, site.client() as client:
        for connection in (first, second):
            connection.sendall(head(site, "/v1/batches", **kind))
            assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        assert_share_is_used(client.get("/v1/models"))
        with site.client(site.other_key) as other, connect(site) as third:
            ok(other.get("/v1/models"))
            hold_an_upload(site, third, site.other_key)
            assert refused(other.get("/v1/models"), 503)["code"] == "slow_down"
            assert other.get("/healthz").status_code == 200
        first.sendall(b"{}")
        assert read_answer(first).status == 400
        ok(client.get("/v1/models"))
