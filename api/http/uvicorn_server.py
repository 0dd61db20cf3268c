"""The HTTP server: uvicorn's httptools protocol with limits and this API's error envelope.

httptools costs a third of h11 a request, but has no limits. Heads, chunk headers and trailers are
counted here, and trailers are discarded.
"""

import asyncio
import socket
import threading
from typing import Final

import httptools
import uvicorn
from starlette.types import ASGIApp, Message
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from api.http.client_connection import EXTENSION, ClientConnection
from api.http.errors import ApiError, error_body
from api.settings import ApiSettings
from core.ids import REQUEST, new_uuid, public_id

UVICORN_VERSION: Final = "0.54.0"
"""The version of uvicorn whose private parts this package uses.

`HttpProtocol` overrides `_start_asgi_task` and calls `_unset_keepalive_if_required`. With
`delimit_body_by_close` and `ClientConnection` it reads the protocol's `pipeline`, `flow`, `cycle`
and timers, and sets fields of its request cycles. A test compares the installed version: check
these parts before an upgrade.
"""

PIPELINE_MAX: Final = 16
"""Requests that a client may pipeline. Hardly any client does."""

_SOCKET_OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
)
"""A client that answers no probe for a minute is disconnected, and its call aborted.

No probe is sent while bytes are unacknowledged. TCP_USER_TIMEOUT limits that time, and so how long
a client may read nothing at all (tcp(7)).
"""

FLUSH_S: Final = 60.0
"""How long unread bytes of a response may wait once the connection is to be closed."""

_LINE_OVERHEAD_BYTES: Final = 4  # colon, space and line break


_INVALID_HTTP: Final = "The request is not valid HTTP/1.1."
_TOO_LARGE: Final = "The request head is too large."
_TOO_MANY: Final = f"More than {PIPELINE_MAX} pipelined requests wait on this connection."


class _RefusedError(Exception):
    """A client exceeded a limit. The message is sent to the client."""


class HttpProtocol(HttpToolsProtocol):
    """One connection. Overrides private parts of uvicorn; see UVICORN_VERSION."""

    head_timeout_s: float
    head_bytes_max: int
    _head_timer: asyncio.TimerHandle | None = None
    _flush_timer: asyncio.TimerHandle | None = None
    _is_in_head = False
    _head_bytes = 0  # request line, headers and trailers so far
    _unfinished_bytes = 0  # since a head, a body chunk or a message was complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `HttpToolsProtocol`; starts the timer for the first head."""
        super().connection_made(transport)
        _set_socket_options(transport)
        self._client_connection = ClientConnection(self)
        self._update_head_timer()

    def data_received(self, data: bytes) -> None:
        """Parse data; limit its size, and time a head from its first byte."""
        self._unfinished_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            refused = error.__context__  # raised in a callback of this class
            message = str(refused) if isinstance(refused, _RefusedError) else _INVALID_HTTP
            self.send_400_response(message)
        if self._unfinished_bytes > self.head_bytes_max:
            self.send_400_response(_TOO_LARGE)
        self._update_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the listeners of the connection.

        uvicorn resumes the served response and marks only the newest request as disconnected. With
        pipelined requests the resumed one is older and would write to a closed transport.
        """
        self._client_connection.discard_writes()
        super().connection_lost(exc)
        self._stop_head_timer()
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        self._client_connection.notify_disconnected()

    def timeout_keep_alive_handler(self) -> None:
        """See `HttpToolsProtocol`."""
        super().timeout_keep_alive_handler()
        self._start_flush_timer()

    def on_response_complete(self) -> None:
        """See `HttpToolsProtocol`; limits the time to flush the last response."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._start_flush_timer()

    def on_message_begin(self) -> None:
        """See `HttpToolsProtocol`."""
        super().on_message_begin()
        self._is_in_head = True
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Count and append a part of the request line."""
        self._count_head_bytes(len(url))
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count and append a header. A trailer is only counted."""
        self._count_head_bytes(len(name) + len(value) + _LINE_OVERHEAD_BYTES)
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start a request. An exception here is answered as invalid HTTP."""
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
        self._client_connection.set_served(cycle)
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
        """Answer invalid HTTP with the error envelope and a request id."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # the route must not respond as well
            cycle.message_event.set()
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(_bad_request(msg))
        self._close()

    def _feed(self, data: bytes) -> None:
        """Parse. A request to upgrade the protocol is ignored, as RFC 9110 allows.

        Some clients send one with every request. The parser takes what follows such a head for the
        other protocol, so the head is parsed again without the upgrade header.
        """
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if self.parser.get_method() == b"CONNECT":
                    raise httptools.HttpParserError from None
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
            else:
                return

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _count_head_bytes(self, byte_count: int) -> None:
        self._head_bytes += byte_count
        if self._head_bytes > self.head_bytes_max:
            raise _RefusedError(_TOO_LARGE)

    def _update_head_timer(self) -> None:
        if not self._owes_bytes():
            self._stop_head_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self._on_head_timeout)

    def _owes_bytes(self) -> bool:
        """Whether the client owes bytes that no route waits for: a head, or a refused body."""
        is_served = self.cycle is not None and not self.cycle.response_complete
        return not is_served and self.timeout_keep_alive_task is None

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._close()

    def _close(self) -> None:
        self.transport.close()
        self._start_flush_timer()

    def _start_flush_timer(self) -> None:
        """Abort the connection after FLUSH_S. A close alone waits until all bytes are sent."""
        if self._flush_timer is None and self.transport.get_write_buffer_size():
            self._flush_timer = self.loop.call_later(FLUSH_S, self.transport.abort)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _set_socket_options(transport: asyncio.Transport) -> None:
    """Let the kernel detect a client that vanished, which no read or write reports."""
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        for level, option, value in _SOCKET_OPTIONS:
            connection.setsockopt(level, option, value)


def _bad_request(message: str) -> bytes:
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


def delimit_body_by_close(cycle: RequestResponseCycle) -> None:
    """Send responses of `cycle`, an HTTP/1.0 request, without chunked encoding.

    uvicorn would send chunks. It closes every such connection, which marks the end.
    """
    send = cycle.send
    has_length = False

    async def send_plain(message: Message) -> None:
        nonlocal has_length
        if message["type"] == "http.response.start":
            has_length = any(name.lower() == b"content-length" for name, _ in message["headers"])
            cycle.chunked_encoding = None if has_length else False
            await send(message)  # type: ignore[arg-type]
        elif has_length or cycle.scope["method"] == "HEAD":
            await send(message)  # type: ignore[arg-type]
        else:
            await _write_plain(cycle, message)

    cycle.send = send_plain  # type: ignore[method-assign, assignment]


async def _write_plain(cycle: RequestResponseCycle, message: Message) -> None:
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return
    cycle.transport.write(message.get("body", b""))
    if not message.get("more_body", False):
        cycle.response_complete = True
        cycle.message_event.set()
        cycle.transport.close()
        cycle.on_response()


class HttpServer(uvicorn.Server):
    """Serves until a signal, including one that arrived before uvicorn installed its handlers."""

    def __init__(self, config: uvicorn.Config, stop: threading.Event) -> None:
        """`stop` is set by signals until uvicorn installs its handlers."""
        super().__init__(config)
        self._stop = stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`. uvicorn's signal handlers are installed by now."""
        await super().startup(sockets)
        if self._stop.is_set():
            self.should_exit = True


def http_server(
    app: ASGIApp, settings: ApiSettings, stop: threading.Event | None = None
) -> HttpServer:
    """Return a server. After SIGTERM or SIGINT, `run` completes requests in flight and returns.

    `stop` is set by signals that arrive before the server starts.
    """
    limits = {"head_timeout_s": settings.head_timeout_s, "head_bytes_max": settings.head_bytes_max}
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=type("BoundHttpProtocol", (HttpProtocol,), limits),
        loop="uvloop",
        ws="none",
        access_log=False,
        log_config=None,  # core.runtime.logs configures every logger
        server_header=False,
        proxy_headers=False,  # nothing depends on the client's address
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=settings.shutdown_grace_s,
    )
    return HttpServer(config, stop or threading.Event())
