"""A small HTTP/1.1 client for one server, with as many kept-alive connections as calls at once."""

import asyncio
from collections.abc import Container
from dataclasses import dataclass
from typing import cast

from gpu_consumers.engines.openai_http.origin import Origin
from gpu_consumers.engines.openai_http.response_reader import (
    DisconnectedError,
    HttpResponse,
    NotHttpError,
    ResponseReader,
    ResponseTooLargeError,
)

_CHECK_INTERVAL_S = 0.25  # precision of deadlines; one timer for all calls
_IDLE_S_MAX = 30.0
_CLOSE_ITERATIONS_MAX = 100  # of the loop; a transport reports its loss in the first few
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


class CannotConnectError(Exception):
    """No connection to the server; the message names the class of the cause."""


class HttpClient:
    """Runs requests on one event loop. The caller bounds how many at once."""

    def __init__(self, origin: Origin, *, connect_timeout_s: float, content_bytes_max: int) -> None:
        self._origin = origin
        self._connect_timeout_s = connect_timeout_s
        self._content_bytes_max = content_bytes_max
        self._opened: set[HttpConnection] = set()
        self._idle: dict[HttpConnection, float] = {}  # idle since, newest last
        self._check: asyncio.TimerHandle | None = None

    async def request(
        self,
        template: HttpRequestTemplate,
        body: bytes | None,
        *,
        fresh: bool = False,
        reader: ResponseReader | None = None,
        deadline_s: float | None = None,
    ) -> HttpResponse:
        """Send one request, over a new connection if `fresh`, and return its response.

        `deadline_s`, by the loop's clock, may cover several requests; without it the template's
        timeout starts now. Cancelling closes the connection. Raises CannotConnectError,
        DisconnectedError, NotHttpError, ResponseTooLargeError; TimeoutError after the deadline.
        """
        loop = asyncio.get_running_loop()
        if deadline_s is None:
            deadline_s = loop.time() + template.timeout_s
        connection = None if fresh else self._newest_idle()
        if connection is None:
            connection = await self._connect(deadline_s)
        try:
            return await connection.request(template, body, deadline_s, reader)
        finally:
            if connection.is_reusable:
                self._idle[connection] = loop.time()
            else:
                connection.abort()

    async def close(self) -> None:
        """Close every connection; no request is running."""
        if self._check is not None:
            self._check.cancel()
            self._check = None
        self._idle.clear()
        for connection in [*self._opened]:
            connection.abort()
        for _ in range(_CLOSE_ITERATIONS_MAX):
            if not self._opened:
                return
            await asyncio.sleep(0)

    def _newest_idle(self) -> HttpConnection | None:
        """Remove and return the connection used last, so that surplus ones become old and close."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.is_reusable:  # the server may have closed it
                return connection
        return None

    async def _connect(self, deadline_s: float) -> HttpConnection:
        """Try the host's addresses in turn, each with its share of the remaining time."""
        loop = asyncio.get_running_loop()
        until_s = min(deadline_s, loop.time() + self._connect_timeout_s)
        failure: OSError = OSError()
        try:
            async with asyncio.timeout_at(until_s):
                addresses = await self._origin.addresses()
            for tried, address in enumerate(addresses):
                share_s = (until_s - loop.time()) / (len(addresses) - tried)
                try:
                    async with asyncio.timeout(share_s):
                        return await self._connect_to(address)
                except OSError as refusal:  # TimeoutError is one
                    failure = refusal
                    self._origin.drop_address(address)
        except OSError as unknown:
            failure = unknown
        if isinstance(failure, TimeoutError) and until_s == deadline_s:
            raise failure
        raise CannotConnectError(type(failure).__name__) from failure

    async def _connect_to(self, address: str) -> HttpConnection:
        loop = asyncio.get_running_loop()
        tls = self._origin.tls
        _, connection = await loop.create_connection(
            lambda: HttpConnection(self._opened, self._content_bytes_max),
            address,
            self._origin.port,
            ssl=tls,
            server_hostname=self._origin.host if tls else None,
        )
        if self._check is None:
            self._check = loop.call_later(_CHECK_INTERVAL_S, self._check_connections)
        return connection

    def _check_connections(self) -> None:
        """End requests past their deadline and close connections that are idle for too long."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for connection in self._opened:
            connection.expire(now_s)
        while self._idle:
            oldest, since_s = next(iter(self._idle.items()))
            if oldest.is_reusable and now_s - since_s < _IDLE_S_MAX:
                break
            del self._idle[oldest]
            oldest.abort()
        self._check = (
            loop.call_later(_CHECK_INTERVAL_S, self._check_connections) if self._opened else None
        )
