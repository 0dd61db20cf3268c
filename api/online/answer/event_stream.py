"""A stream as server-sent events: pieces as they come, comments in between, one end.

Nothing is sent before the first piece, so a refusal keeps its status; but after a while of silence
the head goes out with a comment, and then a refusal comes as an event.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from starlette.types import Message

from api.http.responses import ApiError, error_body
from api.online import metrics
from api.online.answer.call_failures import shutting_down, stream_interrupted, without_retry
from api.online.answer.complete_responses import error_as_response, send_response
from api.online.answer.timings import Timings
from api.online.await_reply.open_call import OpenCall
from api.online.calls import CompleteResponse, RawHeaders
from api.online.receive.exchange import Exchange
from core.clock import Clock
from topics.records.records import ReplyEnd

FetchBody: TypeAlias = Callable[[OpenCall, ReplyEnd], Awaitable[bytes]]
"""Returns the body of an end, also one that lies in the object store. Raises ApiError."""

KEEP_ALIVE: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"

_LINES_TO_SPACES: Final = bytes.maketrans(b"\r\n", b"  ")

STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""Of every answer that is a stream, also of one that is given again."""


def event(payload: bytes) -> bytes:
    """Return one event. JSON may be broken into lines, an event may not."""
    if b"\n" in payload or b"\r" in payload:
        payload = payload.translate(_LINES_TO_SPACES)
    return b"data: " + payload + b"\n\n"


class EventStreamResponse:
    """The answer to one call that streams."""

    def __init__(
        self,
        exchange: Exchange,
        headers: RawHeaders,
        timings: Timings,
        clock: Clock,
        whole_body: FetchBody,
    ) -> None:
        """`headers` are those of every answer to the call."""
        self._exchange, self._send = exchange, exchange.send
        self._connection, self._recording = exchange.connection, exchange.recording
        self._headers = headers
        self._timings, self._clock = timings, clock
        self._whole_body = whole_body
        self._is_begun = self._has_pieces = False

    async def run(self, call: OpenCall) -> None:
        """Write until the call is over; a client that left gets nothing more."""
        call.writer = asyncio.current_task()
        try:
            while not await self._step(call):
                pass
        except asyncio.CancelledError:
            if call.is_cut and call.failure is not None:
                self._cut(call.failure)
                return
            failure = stream_interrupted() if self._is_begun else shutting_down()
            call.fail(failure)  # unless its end is here already, and could not be written
            if not call.left:
                await self._fail(call, call.failure or failure)

    async def _step(self, call: OpenCall) -> bool:
        """Write what there is; return whether that was the end."""
        await call.changed()
        if call.left:
            return True
        if call.pieces:
            return await self._write_pieces(call)
        if call.failure is not None:
            await self._fail(call, call.failure)
            return True
        if call.end is not None:
            await self._end(call, call.end)
            return True
        await self._keep_alive(call)
        return False

    async def _write_pieces(self, call: OpenCall) -> bool:
        if not self._has_pieces:
            self._has_pieces = True
            metrics.FIRST_PIECE_SECONDS.observe(call.heard_s - self._timings.arrived_s)
        pieces = call.take_pieces()
        is_last = call.end is not None and call.end.status_code < 400
        events = b"data: " + b"\n\ndata: ".join(pieces) + b"\n\n"
        await self._write(call, events + DONE if is_last else events, more=not is_last)
        call.buffered_bytes -= sum(map(len, pieces))
        return is_last

    async def _end(self, call: OpenCall, end: ReplyEnd) -> None:
        if end.status_code < 400:
            await self._write(call, DONE, more=False)
            return
        try:
            body = await self._whole_body(call, end)
        except ApiError:
            await self._fail(call, stream_interrupted())
            return
        if self._is_begun:
            await self._write(call, event(body), more=False)
            return
        try:
            await send_response(
                self._exchange, CompleteResponse(end.status_code, body, self._headers)
            )
        except ApiError as no_room:
            raise without_retry(no_room) from None

    async def _fail(self, call: OpenCall, failure: ApiError) -> None:
        if self._is_begun:
            await self._write(call, event(error_body(failure)), more=False)
        else:
            await send_response(self._exchange, error_as_response(failure, self._headers))

    def _cut(self, failure: ApiError) -> None:
        """End it without waiting for its reader; an answer before it may be what is not read."""
        if self._is_begun:
            self._connection.cut(event(error_body(failure)))
        else:
            self._connection.drop()

    async def _keep_alive(self, call: OpenCall) -> None:
        call.keep_alive_due = False
        await self._write(call, KEEP_ALIVE, more=True)

    async def _write(self, call: OpenCall, data: bytes, *, more: bool) -> None:
        if not self._is_begun:
            self._timings.heard_s = call.heard_s
            timing = (b"server-timing", self._timings.at_stream_head())
            headers = [*STREAM_HEADERS, *self._headers, timing]
            await self._put(
                call, {"type": "http.response.start", "status": 200, "headers": headers}
            )
            self._is_begun = True
        await self._put(call, {"type": "http.response.body", "body": data, "more_body": more})
        call.quiet_since_s = self._clock.monotonic_s()

    async def _put(self, call: OpenCall, message: Message) -> None:
        """Send a message. What it takes to record it is not its reader's time."""
        if self._recording is not None:
            await self._recording.record(message)
        call.sending_since_s = self._clock.monotonic_s()
        try:
            await self._send(message)
        finally:
            call.sending_since_s = None
