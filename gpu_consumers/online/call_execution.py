"""Executes online calls; see `OnlineWorker` for the order of steps."""

import asyncio
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from core.clock import Clock
from core.errors import PoolBusyError, PoolUnavailableError
from core.ids import new_uuid
from gpu_consumers import metrics
from gpu_consumers.cancellation.liveness import CallLiveness
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher, PoolHealth
from gpu_consumers.flow_control.warm_model import ANY_VERSION, WarmModel
from gpu_consumers.inflight.batch_run import DeliveredBatch
from gpu_consumers.inflight.item_outcomes import CRASHES_ENGINE
from gpu_consumers.inflight.online_call import NO_ANSWER, REQUEUED, CallAbortReason, OnlineCall
from gpu_consumers.inflight.replies import ReplyPublisher, ReplyStream
from gpu_consumers.online.call_completion import CallCompletion
from gpu_consumers.online.call_server import CallServer
from gpu_consumers.quarantine.redelivered_calls import RerunPermissions, SuspectCalls
from topics.clients.offset_tracker import Partition
from topics.records.records import Batch, CallerHeartbeat, Chunk, Item

COMPLETED_MAX = 100_000
"""Calls that are remembered; the oldest are forgotten first."""


class CompletedCalls:
    """The newest ids of calls whose end is acknowledged."""

    def __init__(self, count_max: int = COMPLETED_MAX) -> None:
        self._count_max = count_max
        self._ids: OrderedDict[UUID, None] = OrderedDict()

    def add(self, request_id: UUID) -> None:
        """Remember a call."""
        self._ids[request_id] = None
        if len(self._ids) > self._count_max:
            self._ids.popitem(last=False)

    def __contains__(self, request_id: UUID) -> bool:
        return request_id in self._ids


class OtherVersionCalls:
    """How often calls came here whose model version is not here; the oldest are forgotten first."""

    def __init__(self, count_max: int = COMPLETED_MAX) -> None:
        self._count_max = count_max
        self._counts: OrderedDict[UUID, int] = OrderedDict()

    def add(self, request_id: UUID) -> int:
        """Count a call; return how often it has come."""
        count = self._counts.pop(request_id, 0) + 1
        self._counts[request_id] = count
        if len(self._counts) > self._count_max:
            self._counts.popitem(last=False)
        return count


OTHER_VERSION_MAX: Final = 3
"""How often a call is requeued because its model version is not here; then it fails."""

_OTHER_VERSION_WAIT_S: Final = 0.5  # before it is requeued a second time

ABORT_CHECK_S: Final = 0.5
"""Time between two checks of running calls for silent callers and deadlines."""

_CHECKED_COUNT: Final = 500  # calls checked in one iteration of the event loop


@dataclass(slots=True, kw_only=True, eq=False)
class CallExecution:
    """Executes the calls of class interactive. All methods are called on the event loop."""

    server: CallServer
    completion: CallCompletion
    replies: ReplyPublisher
    permissions: RerunPermissions
    liveness: CallLiveness
    capacity: CapacityPublisher
    pool: PoolHealth
    suspects: SuspectCalls
    clock: Clock
    served: WarmModel = ANY_VERSION
    _running: dict[UUID, OnlineCall] = field(default_factory=dict)
    _completed: CompletedCalls = field(default_factory=CompletedCalls)
    _other_version: OtherVersionCalls = field(default_factory=OtherVersionCalls)
    _is_draining: bool = False

    def accept_batch(self, delivered: DeliveredBatch) -> list[OnlineCall]:
        """Count the batch as in flight and return its calls."""
        arrived_s = self.clock.monotonic_s()
        calls = [
            self._new_call(delivered, part, item, arrived_s)
            for part in delivered.batch.parts
            for item in part.items
        ]
        self.capacity.record_arrival(delivered.batch, len(calls))
        return calls

    async def run_call(self, call: OnlineCall) -> None:
        """Execute a call and publish its end; return when that is acknowledged.

        Of two deliveries of a call the second waits for the first. It is ignored if the first was
        completed; if the first was requeued, the second may be the requeued call. Raises failures
        that must end the process.
        """
        while (first := self._running.get(call.request_id)) is not None:
            assert first.task is not None
            await asyncio.wait([first.task])
        if call.request_id in self._completed:
            self.capacity.record_end(call.batch, 1)
            self._settle(call, None)
            return
        self._running[call.request_id] = call
        try:
            answer = await self._execute_call(call)
            if await self.completion.publish_end(call, answer):
                self._completed.add(call.request_id)
            await self.suspects.delete_charge(call)
        finally:
            del self._running[call.request_id]

    def apply_caller_record(self, record: CallerHeartbeat) -> None:
        """Apply the aborts and permissions of a caller; abort its calls if it stops."""
        for request_id in record.aborted:
            call = self._running.get(request_id)
            if call is not None:
                call.abort(CallAbortReason.CALLER)
        self.permissions.grant(record.permitted)
        if record.leaving:
            for call in self._running.values():
                if call.job.call is not None and call.job.call.caller_id == record.caller_id:
                    self.liveness.abort_if_obsolete(call)

    async def abort_obsolete_calls(self) -> None:
        """Abort calls of silent callers and past deadlines, repeatedly until cancelled.

        Raises the failure of the reader of callers.
        """
        while True:
            await asyncio.sleep(ABORT_CHECK_S)
            metrics.CALLS_RUNNING.set(len(self._running))
            for number, call in enumerate([*self._running.values()], 1):
                self.liveness.abort_if_obsolete(call)
                if number % _CHECKED_COUNT == 0:
                    await asyncio.sleep(0)

    def calls_to_release(
        self, partitions: Collection[Partition], *, lost: bool
    ) -> list[OnlineCall]:
        """Return the calls of moved partitions that the next owner may run, too.

        Those are durable calls, and all calls of `lost` partitions; the offsets of other calls are
        committed before the partition moves.
        """
        running = self._running.values()
        return [c for c in running if c.partition in partitions and (lost or c.is_durable)]

    def report_moved(self, partitions: Collection[Partition]) -> None:
        """Tell callers of started calls that run on, though their partitions move.

        Not while this replica drains: it commits no running call then, and the next owner asks.
        """
        for call in [] if self._is_draining else self._running.values():
            is_here = call.has_started and not call.is_revoked and not call.is_requeued
            if call.partition in partitions and is_here and _has_only_connections(call.batch):
                call.replies.report_only_here(only_here=True)

    def drain(self) -> None:
        """Requeue new calls; running ones go on."""
        self._is_draining = True

    def abort_all(self) -> None:
        """Abort running calls; those that have sent nothing are requeued."""
        self._is_draining = True
        for call in self._running.values():
            call.abort(CallAbortReason.DRAIN)

    def _new_call(
        self, delivered: DeliveredBatch, part: Chunk, item: Item, arrived_s: float
    ) -> OnlineCall:
        job = part.job
        return OnlineCall(
            batch=delivered.batch,
            job=job,
            item=item,
            replies=ReplyStream(self.replies, job.call, job.job_id, new_uuid()),
            arrived_s=arrived_s,
            is_redelivered=delivered.is_redelivered or part.redelivered,
            waited_s=part.waited_s,
            queued_s=part.queued_s,
            token_charge=part.charged,
            partition=(delivered.record.topic, delivered.record.partition),
            generation=delivered.generation,
        )

    async def _execute_call(self, call: OnlineCall) -> EngineAnswer | None:
        """Return the answer of the engine; None when the call was aborted."""
        is_suspect = call.is_redelivered
        answer: EngineAnswer | None = None
        try:
            if not await self._admit_call(call):
                return None
            body = await self.server.load_body(call)
            if isinstance(body, EngineAnswer):
                answer = body
            elif not is_suspect:
                async with self.suspects.attribution.run_alongside():
                    answer = await self.server.serve_call(call, body)
            else:
                async with self.suspects.run_redelivered_call(call) as may_run:
                    answer = await self.server.serve_call(call, body) if may_run else CRASHES_ENGINE
            if call.abort_reason is CallAbortReason.PIECE_TOO_LARGE:
                return None
            call.abort_reason = None  # the answer was faster than the abort
            self.capacity.record_answers(1)
            self.suspects.attribution.host.record_answers(1)
            return answer
        except asyncio.CancelledError:
            if call.abort_reason is None:
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            return None
        except PoolUnavailableError as failure:
            if not isinstance(failure, PoolBusyError):
                self.pool.mark_unavailable()
            call.abort_reason = self.liveness.abort_reason(call) or CallAbortReason.POOL
            return None
        finally:
            call.end_execution()
            self.capacity.record_end(call.batch, 1)
            self._settle(call, answer)

    def _settle(self, call: OnlineCall, answer: EngineAnswer | None) -> None:
        """Report what a call used that has ended here."""
        if call.token_charge is None:
            return
        if answer is None and call.has_started and call.abort_reason not in REQUEUED:
            answer = call.executed or NO_ANSWER  # aborted, with the token counts so far, if known
        self.capacity.usage.settle(call.job, [(answer, call.token_charge)])

    async def _admit_call(self, call: OnlineCall) -> bool:
        """Check liveness and permission; if the call must not run, set the reason, return False."""
        reason = await self.liveness.check_before_start(call)
        if call.abort_reason is None:  # else it was aborted meanwhile, and that reason counts
            is_drained = reason is None and self._is_draining
            call.abort_reason = CallAbortReason.DRAIN if is_drained else reason
        if call.abort_reason is not None:
            return False
        caller = call.job.call
        if call.is_redelivered and caller is not None and not caller.durable:
            if not await self.permissions.request_rerun(caller, call.request_id):
                call.abort_reason = CallAbortReason.UNPERMITTED
                return False
            call.is_redelivered = False
        if not self.served.serves(
            call.job
        ):  # its stream may have pieces, so its caller comes first
            await self._reject_other_version(call)
            return False
        return True

    async def _reject_other_version(self, call: OnlineCall) -> None:
        """Let a call be requeued, because its model version is not here, or fail at last.

        Only a batcher of an earlier release, which knows no versions, sends it here again.
        """
        metrics.OTHER_VERSION_ITEMS.inc()
        count = self._other_version.add(call.request_id)
        if 1 < count <= OTHER_VERSION_MAX:
            await asyncio.sleep(_OTHER_VERSION_WAIT_S)
        is_last = count > OTHER_VERSION_MAX
        reason = CallAbortReason.NO_VERSION if is_last else CallAbortReason.OTHER_VERSION
        call.abort_reason = call.abort_reason or reason


def _has_only_connections(batch: Batch) -> bool:
    """Whether all calls of a batch are connection-bound, so that its offset may be committed."""
    calls = [part.job.call for part in batch.parts]
    return all(call is not None and not call.durable for call in calls)
