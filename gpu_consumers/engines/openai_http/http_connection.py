"""One HTTP/1.1 connection: one request at a time, kept alive while both sides agree."""

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

_TRAILER_S_MAX = 1.0  # from the last relevant byte of a response to its end
_WRITE_BYTES = 256 * 1024  # of a large body that the transport may copy at once


@dataclass(frozen=True, slots=True)
class HttpRequestTemplate:
    """What the requests to one endpoint have in common."""

    head: bytes  # request line and fields, without a length
    timeout_s: float
    unread: Container[int]  # statuses whose content is not read


class HttpConnection(asyncio.Protocol):
    """Sends a request and waits for its response. Has no timer: the client calls `expire`."""

    def __init__(self, opened: set["HttpConnection"], content_bytes_max: int) -> None:
        """Belong to `opened` while connected."""
        self._opened = opened
        self._own_reader = ResponseReader(content_bytes_max)
        self._reader = self._own_reader  # or the one given with the request
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._unsent: memoryview | None = None
        self._response: asyncio.Future[HttpResponse] | None = None  # while a request waits
        self._deadline_s = 0.0

    async def request(
        self,
        template: HttpRequestTemplate,
        body: bytes | None,
        deadline_s: float,
        reader: ResponseReader | None = None,
    ) -> HttpResponse:
        """Send one request, with a length if it has a body, and return its response.

        A new `reader` may read this response. Raises DisconnectedError, NotHttpError,
        ResponseTooLargeError; TimeoutError by `expire`.
        """
        if not self._is_open():
            raise DisconnectedError
        response: asyncio.Future[HttpResponse] = self._loop.create_future()
        self._response = response
        self._deadline_s = deadline_s
        self._reader = self._own_reader if reader is None else reader
        self._reader.expect(template.unread)
        self._send(template.head, body)
        return await response

    @property
    def is_reusable(self) -> bool:
        """Whether the last request left no bytes to send and none to receive."""
        return self._reader.leaves_connection_usable and self._unsent is None and self._is_open()

    def expire(self, now_s: float) -> None:
        """End the waiting request if its deadline has passed."""
        if now_s < self._deadline_s:
            return
        if self._response is not None and self._reader.is_done:
            self._succeed(self._reader.end())
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
        elif len(body) <= _WRITE_BYTES:
            self._transport.write(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
        else:
            self._unsent = memoryview(body)
            self._transport.write(b"%bContent-Length: %d\r\n\r\n" % (head, len(body)))
            self._send_rest()

    def _send_rest(self) -> None:
        """Write until the transport pauses. The response may arrive before the end of the body."""
        while self._unsent is not None and not self._is_paused and self._is_open():
            assert self._transport is not None
            part, rest = self._unsent[:_WRITE_BYTES], self._unsent[_WRITE_BYTES:]
            self._unsent = rest or None
            self._transport.write(part)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._is_paused = False
        self._send_rest()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is another class
        if transport.get_extra_info("sslcontext") is None:
            # With an empty buffer limit uvloop sends within `write`, not in the next iteration. A
            # TLS transport would pause for ever: it compares its empty buffer with `>=`.
            self._transport.set_write_buffer_limits(high=0)
        self._opened.add(self)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._response is None:
            self.abort()  # unrequested; the next request must not take it for its response
            return
        try:
            response = self._reader.feed(data)
        except (NotHttpError, ResponseTooLargeError) as failure:
            self._fail(failure)
        else:
            if response is not None:
                self._succeed(response)
            elif self._reader.is_done:
                self._deadline_s = min(self._deadline_s, self._loop.time() + _TRAILER_S_MAX)

    def eof_received(self) -> None:
        """See `asyncio.Protocol`: ends a response without a stated length."""
        if self._response is None:
            return
        try:
            self._succeed(self._reader.end())
        except DisconnectedError as failure:
            self._fail(failure)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._opened.discard(self)
        self._own_reader.release()
        self._unsent = None
        self._fail(DisconnectedError())

    def _succeed(self, received: HttpResponse) -> None:
        response, self._response = self._response, None
        if response is not None and not response.done():  # done: the request was cancelled
            response.set_result(received)

    def _fail(self, failure: Exception) -> None:
        response, self._response = self._response, None
        if response is not None and not response.done():
            response.set_exception(failure)
