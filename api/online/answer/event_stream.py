"""A streamed response as server-sent events: pieces when they arrive, keep-alive comments, one end.

The response starts with the first piece, so that a refusal before it keeps its HTTP status. After
`keep_alive_s` of silence the response starts with a comment; a later refusal is then an event.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from starlette.types import Message

from api.http.errors import ApiError, error_body
from api.online import metrics
from api.online.await_reply.open_calls import OpenCall
from api.online.call_errors import shutting_down, stream_interrupted, without_retry
from api.online.calls import Timings
from api.online.exchange import (
    CompleteResponse,
    Exchange,
    RawHeaders,
    error_as_response,
    send_response,
)
from core.clock import Clock
from topics.records.records import ReplyEnd

FetchBody: TypeAlias = Callable[[OpenCall, ReplyEnd], Awaitable[bytes]]
"""Returns the body of a reply's end, from the object store if necessary. Raises ApiError."""

KEEP_ALIVE: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"

_LINES_TO_SPACES: Final = bytes.maketrans(b"\r\n", b"  ")

STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""Headers of every streamed response, replays included."""


def event(payload: bytes) -> bytes:
    """Return one event. JSON may contain line breaks; the data of an event may not."""
    if b"\n" in payload or b"\r" in payload:
        payload = payload.translate(_LINES_TO_SPACES)
    return b"data: " + payload + b"\n\n"


class EventStreamResponse:
    """The streamed response to one call."""

    def __init__(
        self,
        exchange: Exchange,
        headers: RawHeaders,
        timings: Timings,
        clock: Clock,
        fetch_body: FetchBody,
    ) -> None:
        """`headers` are those of every response to the call."""
        self._exchange, self._send = exchange, exchange.send
        self._connection, self._recording = exchange.connection, exchange.recording
        self._headers = headers
        self._timings, self._clock = timings, clock
        self._fetch_body = fetch_body
        self._has_started = self._has_pieces = False

    async def run(self, call: OpenCall) -> None:
        """Write until the call has ended. A client that disconnected gets nothing more."""
        call.writer = asyncio.current_task()
        try:
            while not await self._write_next(call):
                pass
        except asyncio.CancelledError:
            if call.is_slow_reader and call.failure is not None:
                self._cut_off(call.failure)
                return
            failure = stream_interrupted() if self._has_started else shutting_down()
            call.fail(failure)  # no effect when the end has arrived and could not be written
            if not call.is_disconnected:
                await self._fail(call, call.failure or failure)

    async def _write_next(self, call: OpenCall) -> bool:
        """Write what is available; return whether the response is complete."""
        await call.wait_for_change()
        if call.is_disconnected:
            return True
        if call.pieces:
            return await self._write_pieces(call)
        if call.failure is not None:
            await self._fail(call, call.failure)
            return True
        if call.end is not None:
            await self._write_end(call, call.end)
            return True
        call.keep_alive_due = False
        await self._write(call, KEEP_ALIVE, more=True)
        return False

    async def _write_pieces(self, call: OpenCall) -> bool:
        if not self._has_pieces:
            self._has_pieces = True
            metrics.FIRST_PIECE_SECONDS.observe(call.replied_s - self._timings.arrived_s)
        pieces = call.drain_pieces()
        is_last = call.end is not None and call.end.status_code < 400
        events = b"data: " + b"\n\ndata: ".join(pieces) + b"\n\n"
        await self._write(call, events + DONE if is_last else events, more=not is_last)
        call.buffered_bytes -= sum(map(len, pieces))
        return is_last

    async def _write_end(self, call: OpenCall, end: ReplyEnd) -> None:
        if end.status_code < 400:
            await self._write(call, DONE, more=False)
            return
        try:
            body = await self._fetch_body(call, end)
        except ApiError:
            await self._fail(call, stream_interrupted())
            return
        if self._has_started:
            await self._write(call, event(body), more=False)
            return
        response = CompleteResponse(end.status_code, body, self._headers)
        try:
            await send_response(self._exchange, response)
        except ApiError as limit_exceeded:
            raise without_retry(limit_exceeded) from None

    async def _fail(self, call: OpenCall, failure: ApiError) -> None:
        if self._has_started:
            await self._write(call, event(error_body(failure)), more=False)
        else:
            await send_response(self._exchange, error_as_response(failure, self._headers))

    def _cut_off(self, failure: ApiError) -> None:
        """End the response without waiting for the client.

        Before the head is written, the client may still not have read the previous response.
        """
        if self._has_started:
            self._connection.write_last_and_close(event(error_body(failure)))
        else:
            self._connection.abort()

    async def _write(self, call: OpenCall, data: bytes, *, more: bool) -> None:
        if not self._has_started:
            self._timings.replied_s = call.replied_s
            timing = (b"server-timing", self._timings.at_stream_head())
            headers = [*STREAM_HEADERS, *self._headers, timing]
            await self._send_message(
                call, {"type": "http.response.start", "status": 200, "headers": headers}
            )
            self._has_started = True
        body = {"type": "http.response.body", "body": data, "more_body": more}
        await self._send_message(call, body)
        call.last_write_s = self._clock.monotonic_s()

    async def _send_message(self, call: OpenCall, message: Message) -> None:
        """Send a message. The time to record it does not count as time of a slow reader."""
        if self._recording is not None:
            await self._recording.record(message)
        call.sending_since_s = self._clock.monotonic_s()
        try:
            await self._send(message)
        finally:
            call.sending_since_s = None
