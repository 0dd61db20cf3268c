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
from results.webhooks.addresses import Reach
from results.webhooks.resolving import AddressRefusedError, allowed_addresses
from results.webhooks.urls import ReceiverUrl

ANSWER_BYTES_MAX: Final = 64 * 1024
_PIECE_BYTES: Final = 8 * 1024
_DRAIN_S: Final = 1.0  # to let the receiver end what it says; it changes nothing
_ADDRESSES_TRIED_MAX: Final = 4


class PostError(Exception):
    """There was no answer; `code` says why, stable for logs and history."""

    def __init__(self, code: str) -> None:
        """`code` is one of the codes in docs/webhooks.md."""
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver said."""

    status_code: int
    retry_after: str | None


@dataclass(frozen=True, slots=True)
class Poster:
    """Sends; holds what all tries share."""

    reach: Reach
    tls: ssl.SSLContext
    timeout_s: float

    async def post(
        self,
        url: ReceiverUrl,
        looked_up: Awaitable[list[str]],
        headers: Mapping[str, str],
        body: bytes,
    ) -> Answer:
        """Return the answer to one request. Raises PostError, ShortageError.

        `looked_up` gives the addresses of the host: the time for that is the try's, too.
        """
        try:
            async with asyncio.timeout(self.timeout_s):
                connected = await self._connect(url, looked_up)
                return await self._exchange(connected, url, _request(url, headers, body))
        except TimeoutError:
            raise PostError("timed_out") from None
        except AddressRefusedError:
            raise PostError("address_refused") from None
        except ssl.SSLError:
            raise PostError("tls_failed") from None
        except httptools.HttpParserError:
            raise PostError("not_http") from None
        except OSError as error:
            raise (ShortageError if is_shortage(error) else PostError("disconnected")) from None

    async def _exchange(self, connected: socket.socket, url: ReceiverUrl, request: bytes) -> Answer:
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
            return await _read_answer(reader)
        finally:
            writer.transport.abort()

    async def _connect(self, url: ReceiverUrl, looked_up: Awaitable[list[str]]) -> socket.socket:
        """Return a connection to one of the addresses that were checked, and to none besides."""
        addresses = await allowed_addresses(looked_up, self.reach)
        for address in addresses[:_ADDRESSES_TRIED_MAX]:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            opened = socket.socket(family, socket.SOCK_STREAM)
            try:
                opened.setblocking(False)
                # In numbers, so nothing is looked up again: a name cannot change its mind here.
                await asyncio.get_running_loop().sock_connect(opened, (address, url.port))
            except OSError as error:
                opened.close()
                if is_shortage(error):
                    raise
            except BaseException:
                opened.close()
                raise
            else:
                return opened
        raise PostError("connect_failed")


class _Head:
    """What the parser found so far."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.answer: Answer | None = None
        self.is_complete = False
        self._retry_after: str | None = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self._retry_after = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        if status >= 200 and self.answer is None:
            self.answer = Answer(status, self._retry_after)
        self._retry_after = None

    def on_message_complete(self) -> None:
        self.is_complete = self.answer is not None


async def _read_answer(reader: asyncio.StreamReader) -> Answer:
    head = _Head()
    size = 0
    while head.answer is None:
        piece = await reader.read(_PIECE_BYTES)
        if not piece:
            raise PostError("disconnected")
        size += len(piece)
        if size > ANSWER_BYTES_MAX:
            raise PostError("answer_too_large")
        _feed(head, piece)
    with contextlib.suppress(OSError, TimeoutError, httptools.HttpParserError):
        async with asyncio.timeout(_DRAIN_S):
            while not head.is_complete and size < ANSWER_BYTES_MAX:
                piece = await reader.read(min(_PIECE_BYTES, ANSWER_BYTES_MAX - size))
                if not piece:
                    break
                size += len(piece)
                _feed(head, piece)
    return head.answer


def _feed(head: _Head, piece: bytes) -> None:
    try:
        head.parser.feed_data(piece)
    except httptools.HttpParserUpgrade:
        raise PostError("not_http") from None
    except httptools.HttpParserError:
        if head.answer is None:
            raise
        head.is_complete = True  # what follows a good head is of no interest


def _request(url: ReceiverUrl, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"POST {url.target} HTTP/1.1", f"Host: {url.host_field}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode("ascii") + body
