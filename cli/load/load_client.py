"""A small HTTP/1.1 load client: closed-loop clients on keep-alive connections.

Each client sends its next call when the previous one has ended; calls are timed at the socket. It
sends prebuilt requests and parses responses incrementally, so that measuring costs little CPU. It
counts the server-sent events of a stream instead of keeping them.
"""

import asyncio
import math
import ssl
import time
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools
import msgspec

from cli.exits import CommandError, unreachable_message

_DATA = b"data:"
_DONE = b"[DONE]"
_ERROR = b'{"error"'
_ERROR_STATUS_MIN = 400
_ERROR_BODY_BYTES_MAX = 64 * 1024
"""Bytes of an error response that are kept to read its code."""

_ERROR_PAUSE_S = 0.2
"""Pause after a failed call, so as not to flood a server that rejects calls at once."""


@dataclass(slots=True)
class TimedCall:
    """One call. Times are `time.perf_counter()` seconds, 0 for an event that did not happen."""

    began_s: float
    first_s: float = 0.0  # the first event of a stream, or the first byte of another body
    ended_s: float = 0.0
    status: int = 0  # 0 without a response
    event_count: int = 0  # events of a stream, without `[DONE]` and errors
    is_done: bool = False  # the stream ended with `[DONE]`
    error: str = ""  # why the call failed: the status and the code of the error
    retry_after: str = ""  # the header of the response

    @property
    def latency_s(self) -> float:
        """From the request to the last byte of the response."""
        return self.ended_s - self.began_s

    @property
    def first_wait_s(self) -> float:
        """From the request to the first event or byte of the body."""
        return self.first_s - self.began_s


class LoadTarget:
    """The server and the request of a measurement; every call sends the same bytes."""

    def __init__(
        self, url: str, key: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        """POST `body` as JSON to `url`, with `key` as the bearer token and additional `headers`."""
        parts = urlsplit(url)
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        head = (
            f"POST {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
            f"Accept: */*\r\n{more}Content-Length: {len(body)}\r\n\r\n"
        )
        self.request = head.encode() + body

    async def connect(self) -> "LoadConnection":
        """Return an open connection. Raises OSError."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: LoadConnection(self.request), self._host, self._port, ssl=self._tls
        )
        return connection


class _ErrorFields(msgspec.Struct):
    code: str | None = None


class _ErrorEnvelope(msgspec.Struct):
    error: _ErrorFields


class LoadConnection(asyncio.Protocol):
    """A connection that carries one call at a time."""

    def __init__(self, request: bytes) -> None:
        """Send `request` in every call, once connected."""
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[TimedCall] | None = None
        self._reset()
        self.is_open = False

    def _reset(self) -> None:
        self._call = TimedCall(time.perf_counter())
        self._parser = httptools.HttpResponseParser(self)
        self._partial_line = b""  # of a stream
        self._error_body = b""
        self._is_stream = False

    async def send(self) -> TimedCall:
        """Send the request and return the call after its response; `error` names a failure."""
        assert self._transport is not None
        assert self._ended is None
        self._ended = asyncio.get_running_loop().create_future()
        self._reset()
        self._transport.write(self._request)
        return await self._ended

    def close(self) -> None:
        """Abort the connection at once; the server sees a disconnect."""
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
        self._end("disconnected")

    def on_header(self, name: bytes, value: bytes) -> None:
        """See `httptools`."""
        if name.lower() == b"content-type":
            self._is_stream = value.startswith(b"text/event-stream")
        elif name.lower() == b"retry-after":
            self._call.retry_after = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        """See `httptools`."""
        if self._parser.get_status_code() >= _ERROR_STATUS_MIN:
            self._error_body = (self._error_body + body)[:_ERROR_BODY_BYTES_MAX]
        elif self._is_stream:
            self._count_events(body)
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

    def _count_events(self, data: bytes) -> None:
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
    """Return the code of an error envelope, or ""."""
    try:
        return msgspec.json.decode(body, type=_ErrorEnvelope).error.code or ""
    except msgspec.DecodeError:
        return ""


class ServerUnavailableError(CommandError):
    """The server does not answer."""


@dataclass(slots=True)
class LoadMeasurement:
    """The calls of all clients that ended within the measured time."""

    seconds: float = 0.0
    latencies_s: "array[float]" = field(default_factory=lambda: array("d"))
    first_waits_s: "array[float]" = field(default_factory=lambda: array("d"))
    event_count: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def add_call(self, call: TimedCall) -> None:
        """Add a call that has ended."""
        self.event_count += call.event_count
        if call.error:
            self.errors[call.error] += 1
            return
        self.latencies_s.append(call.latency_s)
        self.first_waits_s.append(call.first_wait_s)

    @property
    def calls_per_s(self) -> float:
        """Successful calls per second."""
        return len(self.latencies_s) / self.seconds


async def run_load(
    target: LoadTarget, *, client_count: int, seconds: float, call_timeout_s: float
) -> LoadMeasurement:
    """Run clients for `seconds`; calls still open then are aborted and not counted.

    Raises ServerUnavailableError when the first connection fails.
    """
    try:
        async with asyncio.timeout(call_timeout_s):
            first = await target.connect()
    except OSError as failure:  # includes TimeoutError
        raise ServerUnavailableError(unreachable_message(target.origin)) from failure
    result = LoadMeasurement()
    began_s = time.perf_counter()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for number in range(client_count):
                connection = first if number == 0 else None
                group.create_task(_repeat_calls(target, connection, result, call_timeout_s))
    result.seconds = time.perf_counter() - began_s
    return result


async def _repeat_calls(
    target: LoadTarget,
    connection: LoadConnection | None,
    result: LoadMeasurement,
    call_timeout_s: float,
) -> None:
    """Send calls until cancelled; reconnect when the connection is closed."""
    try:
        while True:
            try:
                async with asyncio.timeout(call_timeout_s):
                    if connection is None or not connection.is_open:
                        connection = await target.connect()
                    call = await connection.send()
            except TimeoutError:
                call = TimedCall(0.0, error="timeout")
                if connection is not None:
                    connection.close()
            except OSError:
                call = TimedCall(0.0, error="cannot connect")
            result.add_call(call)
            if call.error:
                await asyncio.sleep(_ERROR_PAUSE_S)
    finally:
        if connection is not None:
            connection.close()


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile: the smallest value that `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
