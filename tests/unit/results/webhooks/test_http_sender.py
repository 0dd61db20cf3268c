"""Goal: a response head in time counts, whatever the receiver does afterwards."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from results.webhooks.delivery import http_sender
from results.webhooks.delivery.http_sender import HttpSender, ReceiverResponse
from results.webhooks.endpoints.address_policy import AddressPolicy
from results.webhooks.endpoints.receiver_urls import ReceiverUrl, parse_url

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"


async def looked_up(*addresses: str) -> list[str]:
    return list(addresses)


def make_poster(timeout_s: float) -> HttpSender:
    return HttpSender(AddressPolicy(allow_private=True), ssl.create_default_context(), timeout_s)


@asynccontextmanager
async def answering(said: bytes) -> AsyncIterator[ReceiverUrl]:
    """A receiver that sends a response and keeps the connection open."""
    open_ones: list[asyncio.StreamWriter] = []

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.append(writer)
        writer.write(said)
        await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield parse_url(f"http://127.0.0.1:{port}/", allow_private=True)
    finally:
        server.close()
        for writer in open_ones:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def test_endless_body_does_not_delay_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_sender, "_DRAIN_S", 2.5)
    async with answering(HEAD + b"so") as url:
        answer = await make_poster(2.0).post(url, looked_up("127.0.0.1"), {}, b"{}")
    assert answer == ReceiverResponse(200, None)


async def test_unresponsive_address_leaves_time_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected, asked = http_sender._connected, []

    async def swallowed(address: str, port: int) -> socket.socket:
        asked.append(address)
        if address != "127.0.0.1":
            await asyncio.Event().wait()
        return await connected(address, port)

    monkeypatch.setattr(http_sender, "_connected", swallowed)
    monkeypatch.setattr(http_sender, "_CONNECT_S_MAX", 0.01)
    async with answering(HEAD + b"something") as url:
        found = looked_up("10.0.0.1", "10.0.0.2", "127.0.0.1")
        answer = await make_poster(20.0).post(url, found, {}, b"{}")
    assert answer == ReceiverResponse(200, None)
    assert asked == ["10.0.0.1", "10.0.0.2", "127.0.0.1"]
