"""A small HTTP/1.1 client for load tests: one call at a time on a kept connection.

Times are taken at the socket. The CLI's `bench-online` and the benchmarks share it.
"""

import asyncio
import ssl
import time
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools
import msgspec

_DATA = b"data:"
_DONE = b"[DONE]"
_ERROR = b'{"error"'
_ERROR_STATUS_MIN = 400
_ERROR_BODY_BYTES_MAX = 64 * 1024

DISCONNECTED = "disconnected"
"""`TimedCall.error` of a call whose connection was lost."""


@dataclass(slots=True)
class TimedCall:
    """One call; times are `time.perf_counter()` seconds, 0 if they did not happen."""

    started_s: float
    status: int = 0  # 0 without a complete answer
    first_s: float = 0.0  # arrival of the first event of a stream, or of the body's first byte
    ended_s: float = 0.0
    event_count: int = 0  # events with pieces of the answer: neither errors nor `[DONE]`
    is_done: bool = False  # a stream that ended with `[DONE]`
    error: str = ""  # why the call failed: status and code, or the kind of failure

    @property
    def latency_s(self) -> float:
        """Return the time from the request to the last byte of the answer."""
        return self.ended_s - self.started_s

    @property
    def first_wait_s(self) -> float:
        """Return the time from the request to the first piece of the answer."""
        return self.first_s - self.started_s


def post_request(host: str, path: str, key: str, body: bytes) -> bytes:
    """Return the bytes of a POST of JSON with an API key; `host` may hold a port."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nAccept: */*\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def connect(host: str, port: int, tls: ssl.SSLContext | None = None) -> "LoadConnection":
    """Return an open connection. Raises OSError."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        LoadConnection, host, port, ssl=tls, server_hostname=host if tls else None
    )
    return connection


class CallTarget:
    """A server and the one request that every call sends to it."""

    def __init__(self, base_url: str, key: str, body: bytes) -> None:
        """`base_url` ends with /v1."""
        parts = urlsplit(base_url)
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self.request = post_request(parts.netloc, f"{parts.path}/chat/completions", key, body)

    async def connect(self) -> "LoadConnection":
        """Return an open connection. Raises OSError."""
        return await connect(self._host, self._port, self._tls)


class _ErrorFields(msgspec.Struct):
    code: str | None = None


class _ErrorEnvelope(msgspec.Struct):
    error: _ErrorFields


class _ResponseParser(Protocol):
    def feed_data(self, data: bytes) -> None: ...
    def get_status_code(self) -> int: ...
    def should_keep_alive(self) -> bool: ...


class LoadConnection(asyncio.Protocol):
    """An open connection. Public methods but `send` and `close` are callbacks of its libraries."""

    def __init__(self) -> None:
        """Create an unconnected protocol; see `connect`."""
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[TimedCall] | None = None
        self._call = TimedCall(0.0)
        self._parser = cast("_ResponseParser", httptools.HttpResponseParser(self))
        self._partial_line = b""  # of the stream
        self._error_body = b""
        self._is_stream = False
        self.is_open = False

    async def send(self, request: bytes) -> TimedCall:
        """Send a request and return its ended call, with `error` set if it failed."""
        assert self._transport is not None
        assert self._ended is None  # one call at a time
        self._ended = asyncio.get_running_loop().create_future()
        self._parser = cast("_ResponseParser", httptools.HttpResponseParser(self))
        self._partial_line = self._error_body = b""
        self._is_stream = False
        self._call = TimedCall(time.perf_counter())
        self._transport.write(request)
        return await self._ended

    def close(self) -> None:
        """Abort the connection: the server sees a disconnect at once."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop has its own class
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end("not HTTP")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.is_open = False
        self._end(DISCONNECTED)

    def on_header(self, name: bytes, value: bytes) -> None:
        """See `httptools`."""
        if name.lower() == b"content-type":
            self._is_stream = value.startswith(b"text/event-stream")

    def on_body(self, body: bytes) -> None:
        """See `httptools`."""
        if self._parser.get_status_code() >= _ERROR_STATUS_MIN:
            self._error_body = (self._error_body + body)[:_ERROR_BODY_BYTES_MAX]
        elif self._is_stream:
            self._read_events(body)
        else:
            self._call.first_s = self._call.first_s or time.perf_counter()

    def on_message_complete(self) -> None:
        """See `httptools`."""
        status = self._call.status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self.is_open = False
        if status >= _ERROR_STATUS_MIN:
            self._end(f"{status} {_error_code(self._error_body)}".rstrip())
        elif self._is_stream and not self._call.is_done:
            self._end("broken stream")
        else:
            self._end("")

    def _read_events(self, data: bytes) -> None:
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines:
            if not line.startswith(_DATA):
                continue  # a keep-alive comment, or the empty line after an event
            payload = line[len(_DATA) :].strip()
            if payload == _DONE:
                self._call.is_done = True
            elif payload.startswith(_ERROR):
                self._call.error = f"in the stream: {_error_code(payload)}".rstrip()
            else:
                self._call.first_s = self._call.first_s or time.perf_counter()
                self._call.event_count += 1

    def _end(self, error: str) -> None:
        ended, self._ended = self._ended, None
        if ended is None or ended.done():
            return
        self._call.ended_s = time.perf_counter()
        self._call.error = self._call.error or error
        ended.set_result(self._call)


def _error_code(body: bytes) -> str:
    """Return the code of an error envelope, empty if there is none."""
    try:
        return msgspec.json.decode(body, type=_ErrorEnvelope).error.code or ""
    except msgspec.DecodeError:
        return ""
