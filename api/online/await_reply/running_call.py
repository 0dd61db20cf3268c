"""A call that is sent: it is open until its answer, its deadline, or its client's leaving."""

import asyncio
from contextlib import suppress
from http import HTTPStatus
from typing import Final

import msgspec

from api.http.responses import ApiError
from api.online import metrics
from api.online.admit.rate_limits import Charge
from api.online.answer.call_failures import (
    DEADLINE,
    JOB_CANCELLED,
    LOCAL_FAILURES,
    QUEUE_TIMEOUT,
    deadline_exceeded,
    is_cancelled_reply,
    job_cancelled,
    shutting_down,
    stream_interrupted,
    without_retry,
)
from api.online.answer.complete_responses import error_as_response, send_response
from api.online.answer.event_stream import EventStreamResponse
from api.online.answer.timings import Timings
from api.online.await_reply.deadlines import call_deadline
from api.online.await_reply.open_call import OpenCall
from api.online.calls import CompleteResponse, PlannedCall, PreparedCall, RawHeaders
from api.online.online_runtime import OnlineRuntime
from api.online.receive.exchange import Exchange
from api.online.send.call_keys import decrypt_body, encrypt_item
from api.online.send.call_sender import call_item
from api.online.send.large_bodies import BODY_BYTES_MAX, request_line
from jobs.input.token_estimates import prompt_token_count
from jobs.store.idempotency import Claim
from storage.crypto.body_ciphers import BodyUnreadableError, Place, Way
from topics.records.records import JobRef, ReplyEnd

REPEAT_S: Final = 5.0
"""By then a client that may repeat has done so, and the row of the first call is written."""

BEGUN_WORD_S: Final = 0.25
"""Time for a replica's word that a call has begun; one that comes later finds the call ended."""


_ENDS_JOB: Final = frozenset({DEADLINE, JOB_CANCELLED, QUEUE_TIMEOUT})
"""Failures that end a durable call, too."""


class RunningCall:
    """One call on its way, and the answer to it."""

    def __init__(
        self,
        online: OnlineRuntime,
        exchange: Exchange,
        planned: PlannedCall,
        charge: Charge,
        headers: RawHeaders,
        cache_key: bytes | None,
    ) -> None:
        """`headers` are those of every answer to the call; `charge` is settled when it ends."""
        self._online, self._exchange = online, exchange
        self._planned, self._charge, self._headers = planned, charge, headers
        self._cache_key = cache_key
        self._claim: Claim | None = None
        self._prompt_tokens = prompt_token_count(len(planned.parsed.body))
        self._timings = Timings(exchange.arrived_s)

    async def run(self, begun: PreparedCall) -> None:
        """Send it and answer it. Raises ApiError when one of both cannot be, and what a store does
        that does not take its body.
        """
        assert begun.job is not None
        self._claim = begun.claim
        job, line_bytes = begun.job, begun.line_bytes
        if len(self._planned.parsed.body) <= BODY_BYTES_MAX or job.input_key:
            await self._open(job, begun.wait_s, line_bytes)
            return
        with self._online.calls.coming(job):
            async with call_deadline(self._planned, self._online.clock):
                key, line_bytes = await self._store()
        try:
            await self._open(msgspec.structs.replace(job, input_key=key), begun.wait_s, line_bytes)
        finally:
            self._online.bodies.drop(key)

    async def _store(self) -> tuple[str, int]:
        """Store a body that fits no record; return its key and the length of its line."""
        planned, cipher = self._planned, self._online.call_keys.cipher(self._planned.job)
        if cipher is None:
            line = request_line(planned.request_id, planned.parsed.endpoint, planned.parsed.body)
        else:
            place = Place(planned.request_id, Way.IN, 0)
            line = cipher.encrypt(planned.parsed.body, place)
        return await self._online.bodies.store(planned.request_id, line), len(line)

    async def _open(self, job: JobRef, wait_s: float | None, line_bytes: int) -> None:
        online = self._online
        loop = asyncio.get_running_loop()
        cipher = online.call_keys.cipher(job)
        call = OpenCall(job, now_s=online.clock.monotonic_s(), cipher=cipher)
        online.calls.add(call)
        self._exchange.connection.watch(call.leave)
        left_s = self._left_s(self._planned.timeout_s)
        timers = [loop.call_later(left_s, lambda: call.fail(deadline_exceeded()))]
        if job.call is not None and job.call.begin_by_s:
            patience_s = job.call.begin_by_s + BEGUN_WORD_S - online.caller_clock.now_s()
            timers.append(loop.call_later(patience_s, call.give_up_waiting))
        try:
            self._send_or_wait(call, line_bytes, wait_s)
            await self._answer(call, wait_s)
        finally:
            for timer in timers:
                timer.cancel()
            self._exchange.connection.forget(call.leave)
            self._close(call)

    def _left_s(self, wait_s: float) -> float:
        return self._planned.left_s(wait_s, now_s=self._online.clock.monotonic_s())

    def _send_or_wait(self, call: OpenCall, line_bytes: int, wait_s: float | None) -> None:
        """Send its record. Raises ApiError, unless its client may be told to look later."""
        try:
            self._send(call, line_bytes)
        except ApiError as failure:
            if wait_s is None:
                raise
            call.fail(failure)

    def _send(self, call: OpenCall, line_bytes: int) -> None:
        """Send its record, and hold its body no longer: thousands of calls may wait."""
        parsed = self._planned.parsed
        item = call_item(call.job, parsed.body, parsed.token_count, line_bytes)
        self._online.sender.send(call, encrypt_item(call.job, item, call.cipher))
        parsed.body = b""
        self._exchange.body_hold.release()
        self._timings.sent_s = self._online.clock.monotonic_s()

    async def _answer(self, call: OpenCall, wait_s: float | None) -> None:
        if self._planned.parsed.stream:
            clock = self._online.clock
            stream = EventStreamResponse(
                self._exchange, self._headers, self._timings, clock, self._whole_body
            )
            await stream.run(call)
            return
        try:
            if wait_s is None:
                await call.ended()
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._left_s(wait_s)):
                        await call.ended()
        except asyncio.CancelledError:
            call.fail(shutting_down())
        if call.left:
            return
        answer = await self._finished(call, wait_s)
        try:
            await send_response(self._exchange, answer)
        except ApiError as no_room:
            await send_response(self._exchange, self._instead(call, no_room, wait_s))

    async def _finished(self, call: OpenCall, wait_s: float | None) -> CompleteResponse:
        """Return the answer to a call that does not stream. Raises ApiError; see `_instead`."""
        online = self._online
        if wait_s is not None and call.failure is not None and call.failure.code in LOCAL_FAILURES:
            call.failure = None  # it goes on
        if call.failure is not None:
            if call.is_durable and call.failure.code == QUEUE_TIMEOUT:
                await online.durable.expire(self._planned)
            return error_as_response(call.failure, self._headers)
        if call.end is None:
            return self._accepted()
        if call.is_durable and is_cancelled_reply(call.end):
            is_late = not self._left_s(self._planned.timeout_s)  # the job was closed as expired
            why = deadline_exceeded() if is_late else job_cancelled()
            return error_as_response(why, self._headers)
        try:
            body = await self._whole_body(call, call.end, wait_s)
        except asyncio.CancelledError:
            return self._instead(call, shutting_down(), wait_s)
        except ApiError as failure:
            return self._instead(call, failure, wait_s)
        self._timings.heard_s = call.heard_s
        timing = self._timings.at_end(call.end, now_s=online.clock.monotonic_s())
        headers = [*self._headers, (b"server-timing", timing)]
        end = call.end
        answer = CompleteResponse(
            end.status_code, body, headers, end.input_tokens, end.output_tokens
        )
        if self._cache_key is not None:
            online.cache.keep(self._cache_key, answer)
        return answer

    def _accepted(self) -> CompleteResponse:
        """Return the 202 of a committed call."""
        accepted = self._online.durable.accepted(self._planned, self._claim)
        return CompleteResponse(accepted.status, accepted.body, [*self._headers, *accepted.headers])

    def _instead(self, call: OpenCall, why: ApiError, wait_s: float | None) -> CompleteResponse:
        """Return what stands for an answer that is there and cannot be given: it has a job.

        Raises `why` where its client waits for nothing else. A repeat is paid for again, unless it
        has a key under which a good answer is kept, and comes while the key is held in any case.
        """
        if wait_s is not None:
            return self._accepted()
        is_good = call.end is not None and call.end.status_code < HTTPStatus.BAD_REQUEST
        is_held = self._claim is not None and self._left_s(self._planned.timeout_s) >= REPEAT_S
        raise why if is_good and is_held else without_retry(why)

    async def _whole_body(
        self, call: OpenCall, end: ReplyEnd, wait_s: float | None = None
    ) -> bytes:
        """Return the body of an end, also one that fits no record.

        Raises ApiError: 502 or 503 when it cannot be had, 504 when it is not there in time.
        """
        if end.body_key is None:
            return end.body
        online = self._online
        async with call_deadline(self._planned, online.clock, wait_s=wait_s):
            body = await online.bodies.fetch(end.body_key)
        online.bodies.drop(end.body_key)  # the row of a durable call has its own
        try:
            return body if call.cipher is None else decrypt_body(call.job, body, call.cipher)
        except BodyUnreadableError:
            raise stream_interrupted() from None

    def _close(self, call: OpenCall) -> None:
        online, end = self._online, call.end
        online.calls.remove(call)
        if end is None and not call.is_durable:
            online.news.abort(call.job.job_id)
        used = used_tokens(call, self._prompt_tokens)
        if used is None:
            self._charge.keep()
        else:
            self._charge.settle(used, now_s=online.clock.monotonic_s())
        if end is not None and end.status_code < 400:
            online.execution.ended(call.job.pool, end.execution_s)
        metrics.ENDED.labels(call.job.endpoint, _how(call)).inc()


def used_tokens(call: OpenCall, prompt_tokens: int) -> int | None:
    """Return the tokens that a call counts for once it is closed here; None: it goes on elsewhere.

    One without an end counts as on the ledger, as far as is known: a stream for its prompt and the
    pieces that came, anything else for nothing.
    """
    if call.end is not None:
        return call.end.input_tokens + call.end.output_tokens
    is_ended = call.failure is not None and call.failure.code in _ENDS_JOB
    if call.is_durable and not is_ended:
        return None
    return prompt_tokens + call.piece_count if call.piece_count else 0


def _how(call: OpenCall) -> str:
    if call.left:
        return "left"
    if call.failure is not None:
        return call.failure.code or "error"
    if call.end is None:
        return "accepted"
    return "answered" if call.end.status_code < 400 else "error"
