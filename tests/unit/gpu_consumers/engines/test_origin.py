"""Goal: a base URL becomes a request head and addresses, or is rejected."""

import asyncio
import socket

import pytest

from core.errors import SettingsError
from gpu_consumers.engines.openai_http.origin import Origin


@pytest.mark.parametrize(
    ("url", "host", "port", "head"),
    [
        ("http://h", "h", 80, b"POST /v1/x HTTP/1.1\r\nHost: h\r\n"),
        ("https://H:8443/a/b/", "h", 8443, b"POST /a/b/v1/x HTTP/1.1\r\nHost: h:8443\r\n"),
        ("https://h", "h", 443, b"POST /v1/x HTTP/1.1\r\nHost: h\r\n"),
        ("http://[::1]:81", "::1", 81, b"POST /v1/x HTTP/1.1\r\nHost: [::1]:81\r\n"),
        ("http://b\u00fccher.example", "xn--bcher-kva.example", 80, None),
        ("http://h/\u00e9 x%20y", "h", 80, b"POST /%C3%A9%20x%20y/v1/x HTTP/1.1\r\nHost: h\r\n"),
    ],
)
def test_head_is_built_from_the_url(url: str, host: str, port: int, head: bytes | None) -> None:
    origin = Origin(url)
    assert (origin.host, origin.port) == (host, port)
    assert (origin.tls is not None) == url.startswith("https")
    if head is not None:
        assert origin.head("POST", "/v1/x", {"A": "b"}) == head + b"A: b\r\n"


def test_endpoint_cannot_inject_lines() -> None:
    head = Origin("http://h").head("POST", "/v1/x HTTP/1.1\r\nEvil: 1\r\n", {})
    assert head.count(b"\r\n") == 2
    assert b"\r\nEvil" not in head


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://:80",
        "http://h:port",
        "http://h:99999",
        "http://[::1",
        "http://" + "a" * 64,
        "http://user:secret@h",
        "http://h/?key=secret",
        "http://h/#part",
    ],
)
def test_unusable_url_is_rejected(url: str) -> None:
    with pytest.raises(SettingsError) as raised:
        Origin(url)
    assert "secret" not in str(raised.value)


async def test_concurrent_lookups_share_one_query_and_rotate_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def look_up(host: str, *_: object, **__: object) -> list[object]:
        asked.append(host)
        kind = socket.AF_INET, socket.SOCK_STREAM, 6, ""
        return [(*kind, (address, 80)) for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    origin = Origin("http://h")
    found = await asyncio.gather(*(origin.addresses() for _ in range(10)))
    assert asked == ["h"]
    assert [one[0] for one in found] == ["10.0.0.1", "10.0.0.2"] * 5
    assert all(len(one) == 2 for one in found)

    origin.drop_address("10.0.0.1")
    assert await origin.addresses() == ["10.0.0.2"]
    origin.drop_address("10.0.0.2")
    assert len(await origin.addresses()) == 2
    assert asked == ["h", "h"]
