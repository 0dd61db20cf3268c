"""One connection to an HTTP/1.1 server: one call at a time, kept while both sides agree."""

import asyncio
from collections.abc import Container
from dataclasses import dataclass
from typing import cast

from gpu_consumers.engines.openai_http.response_reader import (
    DisconnectedError,
    HttpResponse,
    NotHttpError,
    ResponseReader,
    ResponseTooLargeError,
)

_TRAILER_S_MAX = 1.0  # from all that matters of an answer to its end
_PIECE_BYTES = 256 * 1024  # of a large body that the transport may copy at a time


@dataclass(frozen=True, slots=True)
class HttpRequestTemplate:
    """What the calls of one endpoint have in common."""

    head: bytes  # request line and fields, without a length
    timeout_s: float
    unread: Container[int]  # statuses whose content nobody wants


class HttpConnection(asyncio.Protocol):
    """Sends a request and waits for its answer. Keeps no timer: somebody calls `expire`."""

    def __init__(self, opened: set["HttpConnection"], content_bytes_max: int) -> None:
        """Be a member of `opened` from the connect to the loss."""
        self._opened = opened
        self._reader = ResponseReader(content_bytes_max)
        self._reading = self._reader  # or the one that the call brought
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._unsent: memoryview | None = None
        self._answered: asyncio.Future[HttpResponse] | None = None  # while a call waits
        self._deadline_s = 0.0

    async def ask(
        self,
        call: HttpRequestTemplate,
        body: bytes | None,
        deadline_s: float,
        reader: ResponseReader | None = None,
    ) -> HttpResponse:
        """Send one request, with a length if it has a body, and return its answer.

        A fresh `reader` may read this one answer. Raises DisconnectedError, NotHttpError,
        ResponseTooLargeError; TimeoutError by `expire`.
        """
        if not self._is_open():
            raise DisconnectedError
        answered: asyncio.Future[HttpResponse] = self._loop.create_future()
        self._answered = answered
        self._deadline_s = deadline_s
        self._reading = self._reader if reader is None else reader
        self._reading.expect(call.unread)
        self._send(call.head, body)
        return await answered

    @property
    def is_reusable(self) -> bool:
        """Whether the last call left nothing behind: no bytes to send and none to come."""
        return self._reading.leaves_connection_usable and self._unsent is None and self._is_open()

    def expire(self, now_s: float) -> None:
        """End the waiting call if its deadline has passed."""
        if now_s < self._deadline_s:
            return
        if self._answered is not None and self._reading.is_done:
            self._succeed(self._reading.end())
        else:
            self._fail(TimeoutError())

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def _send(self, head: bytes, body: bytes | None) -> None:
        assert self._transport is not None
        if body is None:
            self._transport.write(head + b"\r\n")
        elif len(body) <= _PIECE_BYTES:
            self._transport.write(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
        else:
            self._unsent = memoryview(body)
            self._transport.write(b"%bContent-Length: %d\r\n\r\n" % (head, len(body)))
            self._send_pieces()

    def _send_pieces(self) -> None:
        """Send while the transport has room. The call does not wait: it may be answered early."""
        while self._unsent is not None and not self._paused and self._is_open():
            assert self._transport is not None
            piece, rest = self._unsent[:_PIECE_BYTES], self._unsent[_PIECE_BYTES:]
            self._unsent = rest or None
            self._transport.write(piece)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._paused = True

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._paused = False
        self._send_pieces()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is of its own kind
        if transport.get_extra_info("sslcontext") is None:
            # Without room to wait in, uvloop sends in the call to `write`, not a turn later. A TLS
            # transport would pause for ever: it compares its empty buffer with `>=`.
            self._transport.set_write_buffer_limits(high=0)
        self._opened.add(self)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._answered is None:
            self.abort()  # nobody asked; the next call must not take this for its answer
            return
        try:
            answer = self._reading.feed(data)
        except (NotHttpError, ResponseTooLargeError) as failure:
            self._fail(failure)
        else:
            if answer is not None:
                self._succeed(answer)
            elif self._reading.is_done:
                self._deadline_s = min(self._deadline_s, self._loop.time() + _TRAILER_S_MAX)

    def eof_received(self) -> None:
        """See `asyncio.Protocol`: the end of an answer that states no length."""
        if self._answered is None:
            return
        try:
            self._succeed(self._reading.end())
        except DisconnectedError as failure:
            self._fail(failure)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._opened.discard(self)
        self._reader.release()
        self._unsent = None
        self._fail(DisconnectedError())

    def _succeed(self, answer: HttpResponse) -> None:
        answered, self._answered = self._answered, None
        if answered is not None and not answered.done():  # done: the call was cancelled
            answered.set_result(answer)

    def _fail(self, failure: Exception) -> None:
        answered, self._answered = self._answered, None
        if answered is not None and not answered.done():
            answered.set_exception(failure)
