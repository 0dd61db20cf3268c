"""How an online call ends on the log: by its last reply, its outcome, or its return."""

import asyncio
from uuid import UUID

import msgspec

from core.errors import Disposition, MillraceError
from gpu_consumers import metrics
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.flow_control.pool_health import PoolHealth
from gpu_consumers.inflight.acknowledgements import Acknowledgements
from gpu_consumers.inflight.online_call import HANDED_BACK, OnlineCall
from gpu_consumers.inflight.outcomes import count_outcomes
from gpu_consumers.inflight.publishing import send_outcomes
from gpu_consumers.online.call_answers import (
    FIRST_ERROR_STATUS,
    answer_of_cut,
    bill_of_call,
    durable_outcome,
    reply_end,
)
from gpu_consumers.payloads.bodies import ANSWER_BYTES_MAX, store_body
from storage.crypto.body_ciphers import END, Place, Way
from storage.objects.object_store import ObjectStore
from topics.clients.producer import LogProducer
from topics.records.chunks import send_chunk
from topics.records.records import Chunk, ItemOutcome, JobRef

_JOB_CLASS = "interactive"


class CallEnds:
    """Publishes ends and waits for their acknowledgement."""

    def __init__(self, producer: LogProducer, objects: ObjectStore, pool: PoolHealth) -> None:
        """`producer` takes outcomes and calls that go back; replies have their own."""
        self._producer, self._objects, self._pool = producer, objects, pool

    async def publish(self, call: OnlineCall, answer: EngineAnswer | None) -> bool:
        """Say how the call ended; None where it was cut. Return when that is acknowledged.

        Return whether it must not run here again. Raises DeliveryError, and what a store raises
        that the process cannot go on with.
        """
        if answer is None:
            assert call.cut is not None
            metrics.CALLS_ABORTED.labels(call.cut.value).inc()
            if call.cut in HANDED_BACK and (call.is_durable or not call.piece_count):
                await self._put_back(call)
                return False
            answer = answer_of_cut(call)
        if answer is None:
            await self._bill(call)
        elif not await self._say(call, answer):
            self._pool.away()
            await self._put_back(call)
            return False
        return True

    async def _say(self, call: OnlineCall, answer: EngineAnswer) -> bool:
        """Send outcome and reply and wait; False when a large body found no store.

        What is told of a durable call is on the log before: one whose replica dies runs again.
        """
        if call.cipher is not None and answer.body:
            place = Place(call.request_id, Way.OUT, END)
            hidden = call.cipher.encrypt(answer.body, place)
            answer = msgspec.structs.replace(answer, body=hidden)
        outcome = durable_outcome(call, answer) if call.is_durable else None
        try:
            # Objects of their own: the caller removes its body when it has read it.
            end = reply_end(call, answer, await self._stored(call.request_id, answer.body))
            if outcome is not None:
                key = await self._stored(call.request_id, outcome.body)
                if key is not None:
                    outcome = msgspec.structs.replace(outcome, body=b"", body_key=key)
        except MillraceError as failure:
            if failure.disposition is not Disposition.RETRY:
                raise
            return False
        if call.piece_count and answer.status_code >= FIRST_ERROR_STATUS:
            metrics.CALLS_INTERRUPTED.inc()
        acknowledged = Acknowledgements(asyncio.get_running_loop())
        if outcome is not None:
            count_outcomes([outcome])
        elif not call.is_durable:
            outcome = bill_of_call(call, answer)
        self._send(call, outcome, acknowledged)
        if call.is_durable:
            await acknowledged.wait()
        await call.replies.end(end)
        await acknowledged.wait()
        return True

    async def _bill(self, call: OnlineCall) -> None:
        """Report what a call has cost whose caller is not there to be told."""
        if call.is_durable:
            return
        acknowledged = Acknowledgements(asyncio.get_running_loop())
        self._send(call, bill_of_call(call, None), acknowledged)
        await acknowledged.wait()

    def _send(
        self, call: OnlineCall, outcome: ItemOutcome | None, acknowledged: Acknowledgements
    ) -> None:
        if outcome is not None:
            acknowledged.expect(
                send_outcomes(self._producer, call.job, [outcome], acknowledged.report)
            )

    async def _stored(self, job_id: UUID, body: bytes) -> str | None:
        if len(body) <= ANSWER_BYTES_MAX:
            return None
        return await asyncio.to_thread(store_body, self._objects, job_id, body)

    async def _put_back(self, call: OnlineCall) -> None:
        """Return the call to its requests; a durable stream that has begun ends for its caller."""
        metrics.ITEMS_HANDED_BACK.inc()
        acknowledged = Acknowledgements(asyncio.get_running_loop())
        acknowledged.expect(1)
        chunk = Chunk(_as_begun(call), [call.item], redelivered=call.may_have_run)
        send_chunk(self._producer, chunk, _JOB_CLASS, acknowledged.report)
        said = answer_of_cut(call)
        if call.piece_count and said is not None:
            metrics.CALLS_INTERRUPTED.inc()
            await call.replies.end(reply_end(call, said, None))
        await acknowledged.wait()


def _as_begun(call: OnlineCall) -> JobRef:
    """Return what the record says of a call: one that has begun in time need not do so again."""
    caller = call.job.call
    if caller is None or not call.has_begun:
        return call.job
    return msgspec.structs.replace(call.job, call=msgspec.structs.replace(caller, begin_by_s=0.0))
