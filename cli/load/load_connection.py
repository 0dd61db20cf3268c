"""HTTP/1.1 for measuring: one call at a time on a kept connection, timed at the socket."""

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
_BODY_KEPT_MAX = 64 * 1024
"""Bytes of an error's body that are kept for its code."""


@dataclass(slots=True)
class TimedCall:
    """One call; times are `time.perf_counter()` seconds, 0 for what did not happen."""

    began_s: float
    first_s: float = 0.0  # when the first event of a stream, or the body, began to come
    ended_s: float = 0.0
    event_count: int = 0
    error: str = ""  # why it counts as failed: status and code

    @property
    def latency_s(self) -> float:
        """From the request to the last byte of its answer."""
        return self.ended_s - self.began_s

    @property
    def first_wait_s(self) -> float:
        """From the request to the first piece of its answer."""
        return self.first_s - self.began_s


class LoadTarget:
    """Where calls go and what they ask: every call sends the same bytes."""

    def __init__(self, base_url: str, key: str, body: bytes) -> None:
        """`base_url` ends with /v1."""
        parts = urlsplit(base_url)
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.host = parts.hostname or ""
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.port = parts.port or (443 if self.tls else 80)
        head = (
            f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
            f"Accept: */*\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.request = head.encode() + body

    async def connect(self) -> "LoadConnection":
        """Return an open connection. Raises OSError."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            LoadConnection,
            self.host,
            self.port,
            ssl=self.tls,
            server_hostname=self.host if self.tls else None,
        )
        return connection


class _Refusal(msgspec.Struct):
    code: str | None = None


class _Envelope(msgspec.Struct):
    error: _Refusal


class _Parsed(Protocol):
    def feed_data(self, data: bytes) -> None: ...
    def get_status_code(self) -> int: ...
    def should_keep_alive(self) -> bool: ...


class LoadConnection(asyncio.Protocol):
    """An open connection; the callbacks without underscore are asyncio's and httptools'."""

    def __init__(self) -> None:
        """Not connected yet."""
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[TimedCall] | None = None
        self._call = TimedCall(0.0)
        self._parser = cast("_Parsed", httptools.HttpResponseParser(self))
        self._tail = b""  # of the stream: the line that has not ended
        self._kept = b""  # of an error's body
        self._is_stream = self._is_done = False
        self.is_open = False

    async def ask(self, request: bytes) -> TimedCall:
        """Send a request and return its call; one that failed says why."""
        assert self._transport is not None
        self._ended = asyncio.get_running_loop().create_future()
        self._parser = cast("_Parsed", httptools.HttpResponseParser(self))
        self._tail = self._kept = b""
        self._is_stream = self._is_done = False
        self._call = TimedCall(time.perf_counter())
        self._transport.write(request)
        return await self._ended

    def close(self) -> None:
        """Close at once: the server sees that its caller left."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is of its own kind
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Read a part of the answer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end("not HTTP")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The server left."""
        self.is_open = False
        self._end("disconnected")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note whether events follow."""
        if name.lower() == b"content-type":
            self._is_stream = value.startswith(b"text/event-stream")

    def on_body(self, body: bytes) -> None:
        """Count events, keep what says why a call failed."""
        if self._parser.get_status_code() >= _ERROR_STATUS_MIN:
            self._kept = (self._kept + body)[:_BODY_KEPT_MAX]
        elif self._is_stream:
            self._read_events(body)
        else:
            self._call.first_s = self._call.first_s or time.perf_counter()

    def on_message_complete(self) -> None:
        """The answer is whole."""
        status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self.is_open = False
        if status >= _ERROR_STATUS_MIN:
            self._end(f"{status} {_code(self._kept)}".rstrip())
        elif self._is_stream and not self._is_done:
            self._end("broken stream")
        else:
            self._end("")

    def _read_events(self, data: bytes) -> None:
        *lines, self._tail = (self._tail + data).split(b"\n")
        for line in lines:
            if not line.startswith(_DATA):
                continue  # a keep-alive comment, or the empty line behind an event
            payload = line[len(_DATA) :].strip()
            if payload == _DONE:
                self._is_done = True
            elif payload.startswith(_ERROR):
                self._call.error = f"in the stream: {_code(payload)}".rstrip()
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


def _code(body: bytes) -> str:
    """Return the code of an error envelope, empty when there is none."""
    try:
        return msgspec.json.decode(body, type=_Envelope).error.code or ""
    except msgspec.DecodeError:
        return ""
