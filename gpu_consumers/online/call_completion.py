"""Publishes the end of an online call: its last reply and outcome, or its requeued request."""

import asyncio
from typing import Final
from uuid import UUID

import msgspec

from core.clock import SystemClock
from core.errors import Disposition, MillraceError
from core.limits import CLIENT_LEFT_STATUS
from core.outcomes import Outcome
from core.stages import Stage, StageTimes, whole_ms
from gpu_consumers import metrics
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer
from gpu_consumers.flow_control.capacity_publisher import PoolHealth
from gpu_consumers.inflight.item_outcomes import count_outcomes, outcome_of
from gpu_consumers.inflight.online_call import REQUEUED, CallAbortReason, OnlineCall
from gpu_consumers.inflight.pending_sends import PendingSends
from gpu_consumers.payloads.bodies import ANSWER_BYTES_MAX, store_body
from storage.crypto.body_ciphers import ANSWER_END_INDEX, BodyDirection, CipherContext
from storage.objects.object_store import ObjectStore
from topics.clients.producer import RecordProducer
from topics.metrics import STAGE_SECONDS
from topics.records.records import Chunk, ItemOutcome, JobRef, ReplyEnd

_INTERRUPTED = error_answer(
    502,
    "The execution of this request was interrupted. Send the request again.",
    code="stream_interrupted",
)
_CANCELLED = error_answer(409, "This request was cancelled.", code="cancelled")

_ERRORS: Final = {
    CallAbortReason.DEADLINE: error_answer(
        504,
        "The deadline of this request has passed.",
        type_="timeout_error",
        code="deadline_exceeded",
    ),
    CallAbortReason.OVERDUE: error_answer(
        504,
        "This request waited longer for its execution than its queue timeout allows.",
        type_="timeout_error",
        code="queue_timeout",
    ),
    CallAbortReason.DRAIN: error_answer(
        503,
        "The replica that executed this request was stopped. Send the request again.",
        code="stream_interrupted",
    ),
    CallAbortReason.NO_VERSION: error_answer(
        503,
        "No replica serves the model version of this request now. Send the request again.",
        code="version_unavailable",
    ),
    CallAbortReason.POOL: _INTERRUPTED,
    CallAbortReason.PIECE_TOO_LARGE: _INTERRUPTED,
    CallAbortReason.SILENT: _INTERRUPTED,
    CallAbortReason.UNPERMITTED: _INTERRUPTED,
}
_CANCELLED_BY_CALLER: Final = frozenset({CallAbortReason.CALLER, CallAbortReason.CLOSED})


class CallCompletion:
    """Publishes the ends of calls and waits for their acknowledgement."""

    def __init__(
        self, producer: RecordProducer, objects: ObjectStore, pool: PoolHealth, engine: str = ""
    ) -> None:
        """`producer` sends outcomes and requeued calls; replies have their own producer.

        `engine` is the hash of the engine; empty: unknown.
        """
        self._producer, self._objects, self._pool = producer, objects, pool
        self._engine = engine

    async def publish_end(self, call: OnlineCall, answer: EngineAnswer | None) -> bool:
        """Publish the end of a call; without an answer it was aborted.

        Returns, when all is acknowledged, whether the call is completed and must not run here
        again. Raises DeliveryError and failures of the object store that must end the process.
        """
        if answer is None:
            assert call.abort_reason is not None
            metrics.CALLS_ABORTED.labels(call.abort_reason.value).inc()
            if call.abort_reason in REQUEUED and not call.piece_count:
                await self._requeue_call(call)
                return False
            answer = error_of_abort(call)
        if answer is None:
            # A connection-bound call that gets no reply has a cost.
            bill = None if call.is_durable else billed_outcome(call, None)
            sends = self._send_outcome(call, bill)
            if (report := usage_report(call, self._engine)) is not None:
                await call.replies.send_end(report)
            await sends.wait_acknowledged()
        elif not await self._publish_answer(call, answer):
            self._pool.mark_unavailable()
            await self._requeue_call(call)
            return False
        return True

    async def _publish_answer(self, call: OnlineCall, answer: EngineAnswer) -> bool:
        """Publish outcome and reply; return False when the store cannot take a large body.

        The outcome of a durable call is acknowledged before its reply is sent: if the replica
        crashes between the two, the call has its outcome.
        """
        if call.cipher is not None and answer.body:
            place = CipherContext(call.request_id, BodyDirection.OUT, ANSWER_END_INDEX)
            encrypted = call.cipher.encrypt(answer.body, place)
            answer = msgspec.structs.replace(answer, body=encrypted)
        STAGE_SECONDS.labels(Stage.EXECUTION, "interactive").observe(call.execution_s)
        ended_ms = int(1000 * SystemClock().wall_s())
        outcome = durable_outcome(call, answer, ended_ms=ended_ms) if call.is_durable else None
        try:
            # Two objects: the caller deletes the body of its reply after reading it.
            body_key = await self._store_large(call.request_id, answer.body)
            end = reply_end(call, answer, body_key, self._engine)
            if outcome is not None:
                key = await self._store_large(call.request_id, outcome.body)
                if key is not None:
                    outcome = msgspec.structs.replace(outcome, body=b"", body_key=key)
        except MillraceError as failure:
            if failure.disposition is not Disposition.RETRY:
                raise
            return False
        if call.piece_count and answer.is_error:
            metrics.CALLS_INTERRUPTED.inc()
        if outcome is not None:
            count_outcomes([outcome])
        elif not call.is_durable:
            outcome = billed_outcome(call, answer)
        sends = self._send_outcome(call, outcome)
        if call.is_durable:
            await sends.wait_acknowledged()
        await call.replies.send_end(end)
        await sends.wait_acknowledged()
        return True

    def _send_outcome(self, call: OnlineCall, outcome: ItemOutcome | None) -> PendingSends:
        sends = PendingSends(self._producer, self._engine if call.has_started else "")
        if outcome is not None:
            sends.send_outcomes(call.job, [outcome])
        return sends

    async def _store_large(self, job_id: UUID, body: bytes) -> str | None:
        """Store a body that fits no record and return its key."""
        if len(body) <= ANSWER_BYTES_MAX:
            return None
        return await asyncio.to_thread(store_body, self._objects, job_id, body)

    async def _requeue_call(self, call: OnlineCall) -> None:
        """Requeue a call that has sent no piece."""
        call.is_requeued = True
        if call.replies.is_only_here:
            call.replies.report_only_here(only_here=False)
        metrics.ITEMS_HANDED_BACK.inc()
        sends = PendingSends(self._producer)
        chunk = Chunk(_requeued_job(call), [call.item], redelivered=call.is_redelivered)
        sends.requeue_chunk(chunk, "interactive")
        await sends.wait_acknowledged()


def _requeued_job(call: OnlineCall) -> JobRef:
    """Remove the start limit of a call that has started: it was in time."""
    caller = call.job.call
    if caller is None or not call.has_started:
        return call.job
    return msgspec.structs.replace(call.job, call=msgspec.structs.replace(caller, begin_by_s=0.0))


def error_of_abort(call: OnlineCall) -> EngineAnswer | None:
    """Return the error for the caller of an aborted call, None if no reply is due.

    Its token counts are those of the delivered part.
    """
    if call.abort_reason is None:
        return None
    error = _ERRORS.get(call.abort_reason)
    if call.abort_reason in _CANCELLED_BY_CALLER and call.is_durable:
        error = _CANCELLED
    if error is None or call.delivered is None:
        return error
    return msgspec.structs.replace(call.delivered, status_code=error.status_code, body=error.body)


def reply_end(
    call: OnlineCall, answer: EngineAnswer, body_key: str | None, engine: str = ""
) -> ReplyEnd:
    """Return the end of the reply; `body_key` names the object that holds a large body.

    Its token counts are those of the execution, by which the caller settles the tenant's token
    limit, also if less was delivered.
    """
    counted = answer if call.abort_reason is None else call.executed or answer
    return ReplyEnd(
        answer.status_code,
        answer.body if body_key is None else b"",
        counted.input_tokens,
        counted.output_tokens,
        counted.cached_tokens,
        counted.reasoning_tokens,
        call.waited_s,
        call.execution_s if call.has_started else 0.0,
        body_key,
        engine if call.has_started else "",
    )


def usage_report(call: OnlineCall, engine: str = "") -> ReplyEnd | None:
    """Return the end for the caller of a connection-bound call that was left; None if none is due.

    Without tokens the engine does not count this call.
    """
    is_left = call.abort_reason is CallAbortReason.CALLER and not call.is_durable
    if not is_left or not call.has_started:
        return None
    return reply_end(call, EngineAnswer(CLIENT_LEFT_STATUS, b""), None, engine)


def durable_outcome(call: OnlineCall, answer: EngineAnswer, *, ended_ms: int) -> ItemOutcome | None:
    """Return the outcome of a durable call; None if a close record is its outcome.

    The body may still be too large for a record.
    """
    if call.abort_reason is CallAbortReason.CLOSED:
        return None
    if call.abort_reason is CallAbortReason.CALLER:
        return ItemOutcome(
            call.item.index,
            call.item.custom_id,
            Outcome.CANCELLED,
            0,
            b"",
            error_code="cancelled",
            output_tokens=answer.output_tokens,
            attempt=call.item.attempt,
        )
    times = StageTimes(
        whole_ms(call.queued_s), whole_ms(call.waited_s), whole_ms(call.execution_s), ended_ms
    )
    outcome = outcome_of(call.item, answer, times, is_final=True)
    if call.abort_reason not in (CallAbortReason.DEADLINE, CallAbortReason.OVERDUE):
        return outcome
    return msgspec.structs.replace(
        outcome,
        outcome=Outcome.EXPIRED,
        input_tokens=0,
        cached_tokens=0,
        reasoning_tokens=0,
        offset=0,
    )


def billed_outcome(call: OnlineCall, answer: EngineAnswer | None) -> ItemOutcome | None:
    """Return what a connection-bound call costs, as an outcome without a body.

    The outcome belongs to no job: the results writer adds it to the ledger. An aborted call costs
    the part that was sent to its caller. None if nothing was executed.
    """
    if not call.has_started:
        return None
    billed = answer or call.delivered or EngineAnswer(0, b"")
    return ItemOutcome(
        call.item.index,
        call.item.custom_id,
        _billed_as(call, billed),
        billed.status_code,
        b"",
        input_tokens=billed.input_tokens,
        output_tokens=billed.output_tokens,
        cached_tokens=billed.cached_tokens,
        reasoning_tokens=billed.reasoning_tokens,
        attempt=call.item.attempt,
    )


def _billed_as(call: OnlineCall, billed: EngineAnswer) -> Outcome:
    if call.abort_reason is CallAbortReason.DEADLINE:
        return Outcome.EXPIRED
    if call.abort_reason in (*_CANCELLED_BY_CALLER, CallAbortReason.SILENT):
        return Outcome.CANCELLED
    return Outcome.FAILED if billed.is_error else Outcome.SUCCEEDED
