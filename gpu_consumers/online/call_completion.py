"""Publishes the end of an online call: its last reply and outcome, or its requeued request."""

import asyncio
from uuid import UUID

import msgspec

from core.errors import Disposition, MillraceError
from gpu_consumers import metrics
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.flow_control.pool_health import PoolHealth
from gpu_consumers.inflight.item_outcomes import count_outcomes
from gpu_consumers.inflight.online_call import REQUEUED, OnlineCall
from gpu_consumers.inflight.publishing import PendingSends
from gpu_consumers.online.call_answers import (
    FIRST_ERROR_STATUS,
    billed_outcome,
    durable_outcome,
    error_of_abort,
    reply_end,
)
from gpu_consumers.payloads.bodies import ANSWER_BYTES_MAX, store_body
from storage.crypto.body_ciphers import ANSWER_END_INDEX, BodyDirection, CipherContext
from storage.objects.object_store import ObjectStore
from topics.clients.producer import RecordProducer
from topics.records.records import Chunk, ItemOutcome, JobRef

_JOB_CLASS = "interactive"


class CallCompletion:
    """Publishes the ends of calls and waits for their acknowledgement."""

    def __init__(self, producer: RecordProducer, objects: ObjectStore, pool: PoolHealth) -> None:
        """`producer` sends outcomes and requeued calls; replies have their own producer."""
        self._producer, self._objects, self._pool = producer, objects, pool

    async def publish_end(self, call: OnlineCall, answer: EngineAnswer | None) -> bool:
        """Publish the end of a call; without an answer it was aborted.

        Returns, when all is acknowledged, whether the call is completed and must not run here
        again. Raises DeliveryError and failures of the object store that must end the process.
        """
        if answer is None:
            assert call.abort_reason is not None
            metrics.CALLS_ABORTED.labels(call.abort_reason.value).inc()
            if call.abort_reason in REQUEUED and (call.is_durable or not call.piece_count):
                await self._requeue_call(call)
                return False
            answer = error_of_abort(call)
        if answer is None:
            await self._publish_bill(call)
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
        outcome = durable_outcome(call, answer) if call.is_durable else None
        try:
            # Two objects: the caller deletes the body of its reply after reading it.
            end = reply_end(call, answer, await self._store_large(call.request_id, answer.body))
            if outcome is not None:
                key = await self._store_large(call.request_id, outcome.body)
                if key is not None:
                    outcome = msgspec.structs.replace(outcome, body=b"", body_key=key)
        except MillraceError as failure:
            if failure.disposition is not Disposition.RETRY:
                raise
            return False
        if call.piece_count and answer.status_code >= FIRST_ERROR_STATUS:
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

    async def _publish_bill(self, call: OnlineCall) -> None:
        """Publish the cost of a connection-bound call that gets no reply."""
        if not call.is_durable:
            await self._send_outcome(call, billed_outcome(call, None)).wait_acknowledged()

    def _send_outcome(self, call: OnlineCall, outcome: ItemOutcome | None) -> PendingSends:
        sends = PendingSends(self._producer)
        if outcome is not None:
            sends.send_outcomes(call.job, [outcome])
        return sends

    async def _store_large(self, job_id: UUID, body: bytes) -> str | None:
        """Store a body that fits no record and return its key."""
        if len(body) <= ANSWER_BYTES_MAX:
            return None
        return await asyncio.to_thread(store_body, self._objects, job_id, body)

    async def _requeue_call(self, call: OnlineCall) -> None:
        """Requeue a call; if a durable stream has begun, end the reply to its caller."""
        metrics.ITEMS_HANDED_BACK.inc()
        sends = PendingSends(self._producer)
        chunk = Chunk(_requeued_job(call), [call.item], redelivered=call.is_redelivered)
        sends.requeue_chunk(chunk, _JOB_CLASS)
        error = error_of_abort(call)
        if call.piece_count and error is not None:
            metrics.CALLS_INTERRUPTED.inc()
            await call.replies.send_end(reply_end(call, error, None))
        await sends.wait_acknowledged()


def _requeued_job(call: OnlineCall) -> JobRef:
    """Remove the start limit of a call that has started: it was in time."""
    caller = call.job.call
    if caller is None or not call.has_started:
        return call.job
    return msgspec.structs.replace(call.job, call=msgspec.structs.replace(caller, begin_by_s=0.0))
