"""HTTP on a socket: uvicorn's httptools, with the bounds that it lacks and our envelope.

httptools costs a third of h11 a request, but bounds nothing by itself: heads, chunk headers and
trailers are counted here, and trailers are thrown away.
"""

import asyncio
import socket
from typing import Final

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from api.http.client_connection import EXTENSION, ClientConnection
from api.http.http10 import delimit_body_by_close
from api.http.responses import ApiError, error_body
from core.ids import REQUEST, new_uuid, public_id

PIPELINE_MAX: Final = 16
"""Requests that a client may send ahead of their answers; hardly any sends one."""

_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
)
"""A client that answers no probe for a minute is gone; its call is then aborted as any other's.

While bytes wait to be acknowledged no probe is sent: the last option bounds that, and how long a
reader may take nothing at all (tcp(7))."""

LAST_BYTES_S: Final = 60.0
"""How long what is left of an answer may wait once its connection is to close."""

_LINE_BYTES: Final = 4  # what a header line is longer than its name and value


_NOT_HTTP: Final = "This is not HTTP as we understand it."
_TOO_LARGE: Final = "The head is too large."
_TOO_MANY: Final = f"More than {PIPELINE_MAX} requests wait on this connection."


class _RefusedError(Exception):
    """What a client sent is above a limit; the text is for it."""


def http_protocol(*, head_timeout_s: float, head_bytes_max: int) -> type[HttpToolsProtocol]:
    """Return the protocol class with these bounds; uvicorn makes one instance a connection."""
    bounds = {"head_timeout_s": head_timeout_s, "head_bytes_max": head_bytes_max}
    return type("BoundHttpProtocol", (HttpProtocol,), bounds)


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    head_timeout_s: float
    head_bytes_max: int
    _head_timer: asyncio.TimerHandle | None = None
    _end_timer: asyncio.TimerHandle | None = None
    _is_in_head = False
    _head_bytes = 0  # of the request line and headers so far, trailers included
    _unfinished_bytes = 0  # since a head, a piece of a body or a message was complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client that says nothing is not kept."""
        super().connection_made(transport)
        _notice_silence(transport)
        self._client_connection = ClientConnection(self)
        self._bound_the_head()

    def data_received(self, data: bytes) -> None:
        """Bound what comes, and time a head from its first byte, however slowly the rest comes."""
        self._unfinished_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            refused = error.__context__  # of a callback of ours
            told = str(refused) if isinstance(refused, _RefusedError) else _NOT_HTTP
            self.send_400_response(told)
        if self._unfinished_bytes > self.head_bytes_max:
            self.send_400_response(_TOO_LARGE)
        self._bound_the_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits for it."""
        super().connection_lost(exc)
        self._stop_timer()
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._client_connection.lost()

    def timeout_keep_alive_handler(self) -> None:
        """See `HttpToolsProtocol`."""
        super().timeout_keep_alive_handler()
        self._bound_the_end()

    def on_response_complete(self) -> None:
        """See `HttpToolsProtocol`; the last answer of a connection is closed behind."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._bound_the_end()

    def on_message_begin(self) -> None:
        """See `HttpToolsProtocol`."""
        super().on_message_begin()
        self._is_in_head = True
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Count and keep a part of the request line."""
        self._count(len(url))
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count and keep a header; a trailer is only counted."""
        self._count(len(name) + len(value) + _LINE_BYTES)
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin a request. What is raised here is answered as bad HTTP."""
        self._is_in_head = False
        self._unfinished_bytes = 0
        if len(self.pipeline) >= PIPELINE_MAX:
            raise _RefusedError(_TOO_MANY)
        if self.parser.should_upgrade():
            return  # see `_feed`
        self.scope["extensions"] = {EXTENSION: self._client_connection}  # type: ignore[dict-item]
        super().on_headers_complete()
        if self.parser.get_http_version() == "1.0":
            delimit_body_by_close(self.cycle)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._client_connection.begin(cycle)
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """See `HttpToolsProtocol`."""
        self._unfinished_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """See `HttpToolsProtocol`."""
        self._unfinished_bytes = 0
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP, in the envelope and with a request id."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # the route must not answer as well
            cycle.message_event.set()
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(_refusal(msg))
        self._close()

    def _feed(self, data: bytes) -> None:
        """Parse. A wish to speak another protocol is ignored, as RFC 9110 allows.

        Some clients wish so with every request. The parser takes what follows such a head for the
        other protocol, so the head is parsed again without the wish.
        """
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as wish:
                if self.parser.get_method() == b"CONNECT":
                    raise httptools.HttpParserError from None
                data = self._head_without_wish() + data[wish.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
            else:
                return

    def _head_without_wish(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _count(self, byte_count: int) -> None:
        self._head_bytes += byte_count
        if self._head_bytes > self.head_bytes_max:
            raise _RefusedError(_TOO_LARGE)

    def _bound_the_head(self) -> None:
        if not self._waits_unwatched():
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self._give_up)

    def _waits_unwatched(self) -> bool:
        """Whether the client owes bytes that no route waits for: a head, or a refused body."""
        is_served = self.cycle is not None and not self.cycle.response_complete
        return not is_served and self.timeout_keep_alive_task is None

    def _give_up(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._close()

    def _close(self) -> None:
        self.transport.close()
        self._bound_the_end()

    def _bound_the_end(self) -> None:
        """Give up what is left in a while. A close waits until all is sent, for ever by itself."""
        if self._end_timer is None and self.transport.get_write_buffer_size():
            self._end_timer = self.loop.call_later(LAST_BYTES_S, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _notice_silence(transport: asyncio.Transport) -> None:
    """Let the kernel find out that a client has vanished, which no read or write would tell."""
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        for level, option, value in _KEEPALIVE:
            connection.setsockopt(level, option, value)


def _refusal(message: str) -> bytes:
    body = error_body(ApiError(400, message, code="invalid_http"))
    lines = [
        "HTTP/1.1 400 Bad Request",
        "content-type: application/json",
        f"content-length: {len(body)}",
        f"x-request-id: {public_id(REQUEST, new_uuid())}",
        "connection: close",
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body
