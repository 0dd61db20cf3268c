"""A minimal HTTP/1.1 load client: one call at a time on a persistent connection."""

import asyncio
import time
from dataclasses import dataclass
from typing import cast

import httptools

EVENT = b"data: "
DONE = b"data: [DONE]"
ERROR = b'data: {"error"'
_TAIL_BYTES = 16  # enough for an event's prefix and a complete `[DONE]`


@dataclass(slots=True)
class Call:
    """One answered call; times are `time.perf_counter()` seconds."""

    began_s: float
    status: int = 0
    first_s: float = 0.0  # arrival of the first byte of the body
    ended_s: float = 0.0
    events: int = 0  # server-sent events, `[DONE]` and errors included
    errors: int = 0  # events with the error that ends a stream
    is_done: bool = False  # its last event was `[DONE]`

    @property
    def pieces(self) -> int:
        """Events with parts of the answer."""
        return self.events - self.errors - self.is_done

    @property
    def latency_s(self) -> float:
        """From the first byte sent to the last byte received."""
        return self.ended_s - self.began_s

    @property
    def first_byte_s(self) -> float:
        """From the first byte sent to the first byte of the body."""
        return self.first_s - self.began_s


class Connection(asyncio.Protocol):
    """A connection that carries one call at a time."""

    def __init__(self) -> None:
        """Create an unconnected protocol; see `connected`."""
        self._transport: asyncio.WriteTransport | None = None
        self._call: Call | None = None
        self._ended: asyncio.Future[Call] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._tail = b""

    async def ask(self, request: bytes) -> Call:
        """Send a complete request and return its call. Raises ConnectionError."""
        assert self._transport is not None
        assert self._call is None
        self._ended = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._tail = b""
        self._call = Call(time.perf_counter())
        self._transport.write(request)
        return await self._ended

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(exc or ConnectionResetError("closed"))

    def on_body(self, body: bytes) -> None:
        """See `httptools`."""
        call = self._call
        assert call is not None
        if not call.first_s:
            call.first_s = time.perf_counter()
        tail = self._tail
        seen = tail + body
        call.events += seen.count(EVENT) - tail.count(EVENT)
        call.errors += seen.count(ERROR) - tail.count(ERROR)
        self._tail = seen[-_TAIL_BYTES:]

    def on_message_complete(self) -> None:
        """See `httptools`."""
        call, ended = self._call, self._ended
        assert call is not None
        assert ended is not None
        call.ended_s = time.perf_counter()
        call.status = self._parser.get_status_code()
        call.is_done = self._tail.rstrip().endswith(DONE)
        self._call = None
        if not ended.done():
            ended.set_result(call)


def post(host: str, path: str, key: str, body: bytes) -> bytes:
    """Return a complete request."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def connected(host: str, port: int) -> Connection:
    """Return a new connection."""
    _, connection = await asyncio.get_running_loop().create_connection(Connection, host, port)
    return connection
