"""The workers of a replica: one for batches of bulk items, one for online calls."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from core.clock import Clock
from core.runtime.supervised_tasks import SupervisedTasks
from gpu_consumers import metrics
from gpu_consumers.batch_consumer import BatchConsumer
from gpu_consumers.bulk.batch_execution import BatchExecution
from gpu_consumers.bulk.other_versions import abort_other_version
from gpu_consumers.bulk.waiting_batches import WaitingBatches
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher, PoolHealth
from gpu_consumers.inflight.batch_run import (
    BatchAbortReason,
    BatchRun,
    DeliveredBatch,
    ExecutionStatus,
)
from gpu_consumers.online.call_execution import CallExecution
from gpu_consumers.quarantine.quarantine import Quarantine
from gpu_consumers.quarantine.redelivered_calls import SuspectCalls
from topics.clients.offset_tracker import Partition

_CLEANUP_INTERVAL_S: Final = 1.0  # between two deletions of committed attempts
_PUBLISH_INTERVAL_S: Final = 0.1  # between two looks for answers of batches that still run

REVOKE_S_MAX: Final = 2.0
"""How long the rebalance of a group waits until this member has stopped revoked batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkWorker:
    """Runs batches of bulk items, each in one task.

    From delivery to engine, each function calls the next: `start_batch` (called on the event loop
    for each batch that the consumer thread reads), `_run_batch`, `BatchExecution.execute_items`,
    `_execute_job` (once for each job of the batch), `Engine.execute`. A batch passes these steps:

    1. Accept it: drop the items of closed, paused and expired jobs. Abort it if the replica does
       not have its model version: steps 3 and 4 follow.
    2. Execute its items; in `Quarantine` if it is redelivered or exceeds the engine's memory.
    3. Publish outcomes, and requeue the items that the pool could not answer. While a batch runs,
       the outcomes that it has are published every `_PUBLISH_INTERVAL_S`.
    4. When every record is acknowledged, report the batch to the consumer, which commits it.

    The order is the guarantee (docs/delivery.md). A failure that must end the process ends the task
    before step 4, so that the batch is redelivered.
    """

    consumer: BatchConsumer
    capacity: CapacityPublisher
    execution: BatchExecution
    quarantine: Quarantine
    waiting: WaitingBatches
    pool: PoolHealth
    tasks: SupervisedTasks
    clock: Clock

    def start_batch(self, delivered: DeliveredBatch) -> None:
        """Accept a batch and run it in its own task."""
        if self.waiting.accept_delivery(delivered):
            return
        run = self.execution.accept_batch(delivered)
        run.task = self.tasks.start(self._run_batch(run))

    def requeue_pinning(self, partition: Partition, offsets: Collection[int]) -> None:
        """Requeue waiting batches at `offsets`: finished ones behind them cannot be committed."""
        for run in self.execution.runs:
            delivered = run.final_delivery
            if run.partition == partition and delivered.record.offset in offsets:
                self.waiting.requeue_batch(run)

    async def on_revoke(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Abort the batches of the partitions and requeue their open items, within `REVOKE_S_MAX`.

        Batches of `lost` partitions run elsewhere by now. Redelivered batches keep their offset and
        attempt: a requeued item would look like a new one.
        """
        revoked = [run for run in self.execution.runs if run.partition in partitions]
        for run in revoked:
            keeps_offset = lost or run.delivered.is_redelivered
            run.abort(BatchAbortReason.LOST if keeps_offset else BatchAbortReason.REQUEUE)
        self.waiting.forget_partitions(partitions)
        tasks = [run.task for run in revoked if run.task and not run.sends.awaited_partitions]
        if tasks and not lost:
            await asyncio.wait(tasks, timeout=REVOKE_S_MAX)

    def drain(self) -> None:
        """Start no new batch: the next owner of the partitions reads them."""
        self.consumer.drain()

    def requeue_all(self) -> None:
        """Abort what runs: answers are published, other items requeued."""
        self.execution.requeue_all()

    async def publish_early(self) -> None:
        """Publish the outcomes of batches that still run, repeatedly until cancelled."""
        while True:
            await asyncio.sleep(_PUBLISH_INTERVAL_S)
            for run in self.execution.runs:
                run.sends.raise_failure()
                if run.may_publish_early:
                    run.publishing = self.tasks.start(self.execution.publish_early(run))

    async def delete_attempts(self) -> None:
        """Delete the attempts of committed batches, repeatedly until cancelled."""
        while True:
            await asyncio.sleep(_CLEANUP_INTERVAL_S)
            await self.quarantine.delete_attempts(self.consumer.is_committed)

    async def _run_batch(self, run: BatchRun) -> None:
        """Execute, publish and report a batch. If the task is cancelled, it is redelivered."""
        status: ExecutionStatus | None = None
        try:
            if run.delivered.is_redelivered:
                status = await self.quarantine.run_redelivered(run)
            elif run.items:
                if run.has_other_version:
                    await abort_other_version(run)
                began_s = self.clock.monotonic_s()
                work = self.execution.execute_items(run, range(len(run.items)))
                status = await run.until_aborted(work)
                metrics.EXECUTION_SECONDS.observe(self.clock.monotonic_s() - began_s)
                status = await self._publish_batch(run, status)
            else:
                await self.quarantine.record_completed(run)
        finally:
            self.execution.remove_batch(run)
        if run.abort_reason is not BatchAbortReason.LOST:
            last = run.final_delivery
            self.consumer.mark_finished(last.record, last.generation)
        if status is ExecutionStatus.ANSWERED and run.answers:
            self.pool.mark_available()
        elif status is ExecutionStatus.UNAVAILABLE:
            self.pool.mark_unavailable()

    async def _publish_batch(
        self, run: BatchRun, status: ExecutionStatus
    ) -> ExecutionStatus | None:
        """Publish what a batch has. Items that exceeded the memory run again in quarantine."""
        is_too_large = status is ExecutionStatus.OUT_OF_MEMORY
        if run.is_store_unavailable:
            await self.execution.wait_for_store(run)
        requeues = not is_too_large and run.abort_reason is not BatchAbortReason.LOST
        run.is_published = not is_too_large
        await self.execution.publish_outcomes(run, range(len(run.items)), requeues=requeues)
        if is_too_large:
            return await self.quarantine.run_too_large(run)
        await self.quarantine.record_completed(run)
        # Of answers: to execute their items again at once would waste the engine.
        return ExecutionStatus.UNAVAILABLE if run.is_store_unavailable else status


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineWorker:
    """Runs online calls, each in one task.

    From delivery to engine, each function calls the next: `start_batch` (called on the event loop
    for each batch that the consumer thread reads), `CallExecution.run_call` (once for each call),
    `_execute_call`, `CallServer.serve_call`, `Engine.serve`. A call passes these steps:

    1. Drop it if its caller is dead or has aborted it, its deadline has passed, or its job is
       closed.
    2. If it is redelivered, ask its caller for permission to run it again.
    3. Execute it; pieces of a stream are sent as they come.
    4. Publish its end, and the outcome of a durable call; or requeue it if its pool failed.
    5. When every record is acknowledged, for all calls of the batch, report it to the consumer.

    A failure that must end the process ends the task, so that step 5 is never reached.
    """

    consumer: BatchConsumer
    capacity: CapacityPublisher
    execution: CallExecution
    suspects: SuspectCalls
    tasks: SupervisedTasks

    def start_batch(self, delivered: DeliveredBatch) -> None:
        """Accept a batch and run each of its calls in its own task."""
        calls = self.execution.accept_batch(delivered)
        unfinished_count = len(calls)

        def mark_finished() -> None:
            self.consumer.mark_finished(delivered.record, delivered.generation)

        def on_done(task: asyncio.Task[None]) -> None:
            nonlocal unfinished_count
            if not task.cancelled() and task.exception() is None:
                unfinished_count -= 1
                if unfinished_count == 0:
                    mark_finished()

        for call in calls:
            call.task = self.tasks.start(self.execution.run_call(call))
            call.task.add_done_callback(on_done)
        if not calls:
            mark_finished()

    def requeue_pinning(self, partition: Partition, offsets: Collection[int]) -> None:
        """Do nothing: a requeued call would run twice, and its bill does not wait for long."""

    async def on_revoke(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Let the calls run on, because callers wait, and record that they did not crash."""
        if not lost:
            self.execution.report_moved(partitions)
        calls = self.execution.calls_to_release(partitions, lost=lost)
        released = self.tasks.start(self.suspects.release_calls(calls, lost=lost))
        await asyncio.wait([released], timeout=REVOKE_S_MAX)

    def drain(self) -> None:
        """Requeue new calls at once: their callers wait, and other replicas can run them."""
        self.execution.drain()

    def requeue_all(self) -> None:
        """Abort what runs; calls that have sent nothing are requeued."""
        self.execution.abort_all()


ClassWorker = BulkWorker | OnlineWorker
"""Runs the batches of one job class. Its methods are called on the event loop."""
