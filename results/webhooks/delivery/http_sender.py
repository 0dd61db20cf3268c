"""One POST to a receiver that may be hostile: a checked address, bounded bytes, bounded time.

Only the head of the answer counts. No redirect is followed, no proxy used, no connection kept.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Final

import httptools

from core.open_files import ShortageError, is_shortage
from results.webhooks.endpoints.address_policy import AddressPolicy
from results.webhooks.endpoints.name_resolution import AddressRefusedError, allowed_addresses
from results.webhooks.endpoints.receiver_urls import ReceiverUrl

RESPONSE_BYTES_MAX: Final = 64 * 1024
_PIECE_BYTES: Final = 8 * 1024
_DRAIN_S: Final = 1.0  # to let the receiver end what it says; it changes nothing
_ADDRESSES_TRIED_MAX: Final = 4
_CONNECT_SHARE: Final = 0.25  # of a try's time, for an address behind which another one is tried
_CONNECT_S_MAX: Final = 5.0


class SendError(Exception):
    """There was no answer; `code` says why, stable for logs and history."""

    def __init__(self, code: str) -> None:
        """`code` is one of the codes in docs/webhooks.md."""
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class ReceiverResponse:
    """What a receiver said."""

    status_code: int
    retry_after: str | None


@dataclass(frozen=True, slots=True)
class HttpSender:
    """Sends; holds what all tries share."""

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
        """Return the answer to one request. Raises SendError, ShortageError.

        `looked_up` gives the addresses of the host: the time for that is the try's, too.
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
            raise (ShortageError if is_shortage(error) else SendError("disconnected")) from None

    async def _exchange(
        self,
        connected: socket.socket,
        url: ReceiverUrl,
        request: bytes,
        limit: asyncio.Timeout,
    ) -> ReceiverResponse:
        """Return the answer. `limit` is lifted once its head is there: nothing else counts."""
        try:
            reader, writer = await asyncio.open_connection(
                sock=connected,
                ssl=self.tls if url.is_tls else None,
                server_hostname=url.host if url.is_tls else None,
                limit=_PIECE_BYTES,
            )
        except BaseException:
            connected.close()
            raise
        try:
            writer.write(request)
            head = await _read_head(reader)
            limit.reschedule(None)
            await _drain(reader, head)
            assert head.answer is not None
            return head.answer
        finally:
            writer.transport.abort()

    async def _connect(self, url: ReceiverUrl, looked_up: Awaitable[list[str]]) -> socket.socket:
        """Return a connection to one of the addresses that were checked, and to none besides."""
        addresses = (await allowed_addresses(looked_up, self.policy))[:_ADDRESSES_TRIED_MAX]
        # One that swallows everything must leave time for the next.
        share_s = min(_CONNECT_SHARE * self.timeout_s, _CONNECT_S_MAX)
        for behind, address in zip(reversed(range(len(addresses))), addresses, strict=True):
            try:
                async with asyncio.timeout(share_s if behind else None):
                    return await _connected(address, url.port)
            except OSError as error:  # TimeoutError is one
                if is_shortage(error):
                    raise
        raise SendError("connect_failed")


async def _connected(address: str, port: int) -> socket.socket:
    """Return a connection. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setblocking(False)
        # In numbers, so nothing is looked up again: a name cannot change its mind here.
        await asyncio.get_running_loop().sock_connect(opened, (address, port))
    except BaseException:
        opened.close()
        raise
    return opened


class _Head:
    """What the parser found so far."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.answer: ReceiverResponse | None = None
        self.is_complete = False
        self.size = 0  # bytes that were read
        self._retry_after: str | None = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self._retry_after = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        if status >= 200 and self.answer is None:
            self.answer = ReceiverResponse(status, self._retry_after)
        self._retry_after = None

    def on_message_complete(self) -> None:
        self.is_complete = self.answer is not None


async def _read_head(reader: asyncio.StreamReader) -> _Head:
    """Read until there is an answer. Raises SendError, OSError, HttpParserError."""
    head = _Head()
    while head.answer is None:
        piece = await reader.read(_PIECE_BYTES)
        if not piece:
            raise SendError("disconnected")
        if head.size + len(piece) > RESPONSE_BYTES_MAX:
            raise SendError("answer_too_large")
        _feed(head, piece)
    return head


async def _drain(reader: asyncio.StreamReader, head: _Head) -> None:
    """Let the receiver end what it says, for a moment; whatever it is changes nothing."""
    with contextlib.suppress(OSError, httptools.HttpParserError):
        async with asyncio.timeout(_DRAIN_S):
            while not head.is_complete and head.size < RESPONSE_BYTES_MAX:
                piece = await reader.read(min(_PIECE_BYTES, RESPONSE_BYTES_MAX - head.size))
                if not piece:
                    return
                _feed(head, piece)


def _feed(head: _Head, piece: bytes) -> None:
    head.size += len(piece)
    try:
        head.parser.feed_data(piece)
    except httptools.HttpParserUpgrade:
        raise SendError("not_http") from None
    except httptools.HttpParserError:
        if head.answer is None:
            raise
        head.is_complete = True  # what follows a good head is of no interest


def _request(url: ReceiverUrl, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"POST {url.target} HTTP/1.1", f"Host: {url.host_field}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode("ascii") + body
