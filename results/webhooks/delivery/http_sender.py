"""Sends one POST to a possibly hostile receiver: checked address, bounded bytes, bounded time.

Only the head of the response counts. No redirects, no proxy, no reused connections.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Final

import httptools

from core.runtime.open_files import ResourceExhaustedError, is_resource_exhaustion
from results.webhooks.endpoints.address_policy import AddressPolicy
from results.webhooks.endpoints.name_resolution import AddressRefusedError, allowed_addresses
from results.webhooks.endpoints.receiver_urls import ReceiverUrl

RESPONSE_BYTES_MAX: Final = 64 * 1024
_CHUNK_BYTES: Final = 8 * 1024
_DRAIN_S: Final = 1.0  # for the rest of a response, which is ignored
_ADDRESSES_TRIED_MAX: Final = 4
_CONNECT_SHARE: Final = 0.25  # of an attempt's time, for an address that is not the last
_CONNECT_S_MAX: Final = 5.0


class SendError(Exception):
    """No response; `code` is the reason, stable for logs and history."""

    def __init__(self, code: str) -> None:
        """`code` is one of the codes in docs/webhooks.md."""
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class ReceiverResponse:
    """The head of a receiver's response."""

    status_code: int
    retry_after: str | None


@dataclass(frozen=True, slots=True)
class HttpSender:
    """Sends requests; holds what all attempts share."""

    policy: AddressPolicy
    tls: ssl.SSLContext
    timeout_s: float

    async def post(
        self,
        url: ReceiverUrl,
        looked_up: Awaitable[list[str]],
        headers: Mapping[str, str],
        body: bytes,
    ) -> ReceiverResponse:
        """Return the response to one request. Raises SendError, ResourceExhaustedError.

        `looked_up` returns the addresses of the host; its time counts towards `timeout_s`.
        """
        try:
            async with asyncio.timeout(self.timeout_s) as limit:
                connected = await self._connect(url, looked_up)
                request = _request(url, headers, body)
                return await self._exchange(connected, url, request, limit)
        except TimeoutError:
            raise SendError("timed_out") from None
        except AddressRefusedError:
            raise SendError("address_refused") from None
        except ssl.SSLError:
            raise SendError("tls_failed") from None
        except httptools.HttpParserError:
            raise SendError("not_http") from None
        except OSError as error:
            raise (
                ResourceExhaustedError
                if is_resource_exhaustion(error)
                else SendError("disconnected")
            ) from None

    async def _exchange(
        self, connected: socket.socket, url: ReceiverUrl, request: bytes, limit: asyncio.Timeout
    ) -> ReceiverResponse:
        """Return the response. `limit` ends with its head, since the rest is ignored."""
        try:
            reader, writer = await asyncio.open_connection(
                sock=connected,
                ssl=self.tls if url.is_tls else None,
                server_hostname=url.host if url.is_tls else None,
                limit=_CHUNK_BYTES,
            )
        except BaseException:  # also a cancellation: nothing else owns the socket
            connected.close()
            raise
        try:
            writer.write(request)
            head = await _read_head(reader)
            limit.reschedule(None)
            await _drain(reader, head)
            assert head.response is not None
            return head.response
        finally:
            writer.transport.abort()

    async def _connect(self, url: ReceiverUrl, looked_up: Awaitable[list[str]]) -> socket.socket:
        """Return a connection to one of the checked addresses, and to no other."""
        addresses = (await allowed_addresses(looked_up, self.policy))[:_ADDRESSES_TRIED_MAX]
        # An address that drops all packets must leave time for the next one.
        share_s = min(_CONNECT_SHARE * self.timeout_s, _CONNECT_S_MAX)
        for left, address in zip(reversed(range(len(addresses))), addresses, strict=True):
            try:
                async with asyncio.timeout(share_s if left else None):
                    return await _connected(address, url.port)
            except OSError as error:  # TimeoutError is one
                if is_resource_exhaustion(error):
                    raise
        raise SendError("connect_failed")


async def _connected(address: str, port: int) -> socket.socket:
    """Return a connection. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setblocking(False)
        # An address, not a name: a second look-up could return another address.
        await asyncio.get_running_loop().sock_connect(opened, (address, port))
    except BaseException:  # also a cancellation: nothing else owns the socket
        opened.close()
        raise
    return opened


class _Head:
    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.response: ReceiverResponse | None = None
        self.is_complete = False
        self.size = 0  # bytes read
        self._retry_after: str | None = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self._retry_after = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        if status >= 200 and self.response is None:
            self.response = ReceiverResponse(status, self._retry_after)
        self._retry_after = None

    def on_message_complete(self) -> None:
        self.is_complete = self.response is not None


async def _read_head(reader: asyncio.StreamReader) -> _Head:
    """Read the head of the response. Raises SendError, OSError, HttpParserError."""
    head = _Head()
    while head.response is None:
        chunk = await reader.read(_CHUNK_BYTES)
        if not chunk:
            raise SendError("disconnected")
        if head.size + len(chunk) > RESPONSE_BYTES_MAX:
            raise SendError("answer_too_large")
        _feed(head, chunk)
    return head


async def _drain(reader: asyncio.StreamReader, head: _Head) -> None:
    """Read the rest of a response for a moment, so that the receiver can finish; ignore it."""
    with contextlib.suppress(OSError, httptools.HttpParserError):
        async with asyncio.timeout(_DRAIN_S):
            while not head.is_complete and head.size < RESPONSE_BYTES_MAX:
                chunk = await reader.read(min(_CHUNK_BYTES, RESPONSE_BYTES_MAX - head.size))
                if not chunk:
                    return
                _feed(head, chunk)


def _feed(head: _Head, chunk: bytes) -> None:
    head.size += len(chunk)
    try:
        head.parser.feed_data(chunk)
    except httptools.HttpParserUpgrade:
        raise SendError("not_http") from None
    except httptools.HttpParserError:
        if head.response is None:
            raise
        head.is_complete = True  # bytes after a valid head are ignored


def _request(url: ReceiverUrl, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"POST {url.target} HTTP/1.1", f"Host: {url.host_field}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode("ascii") + body
