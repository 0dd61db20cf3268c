"""Requeues batches that wait for an unavailable partition of `results`, so that others commit.

A batch whose outcomes are not acknowledged keeps its offset, and finished records behind it cannot
be committed: a crash would run them again, and their number is limited. When many are finished,
the items of the jobs that wait are appended to the end of the same partition, and the first record
of the batch is reported as finished. The replica keeps the outcomes and does not execute the new
record; after a crash, its next owner does.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from core.ids import new_uuid
from core.runtime.supervised_tasks import SupervisedTasks
from gpu_consumers.batch_consumer import BatchConsumer
from gpu_consumers.inflight.batch_run import BatchRun, DeliveredBatch
from topics.clients.offset_tracker import Partition
from topics.clients.producer import RecordProducer
from topics.records.catalogue import RESULTS
from topics.records.codec import encode
from topics.records.partitioner import job_partition
from topics.records.records import Batch


@dataclass(slots=True, kw_only=True, eq=False)
class WaitingBatches:
    """The requeued batches of this replica. All methods are called on the event loop."""

    producer: RecordProducer
    consumer: BatchConsumer
    tasks: SupervisedTasks
    _by_id: dict[UUID, BatchRun] = field(default_factory=dict)  # of the newest record of each

    def requeue_batch(self, run: BatchRun) -> None:
        """Append the jobs of a batch that wait, if it only waits for unavailable partitions.

        A batch that was requeued must be delivered again before it is requeued again.
        """
        if not run.is_published or run.requeued_as is not None:
            return
        if partitions := run.sends.awaited_partitions:
            batch = _rest_of(run, partitions)
            run.requeued_as = batch.batch_id
            self._by_id[batch.batch_id] = run
            self.tasks.start(self._append(run, run.final_delivery, batch))

    def accept_delivery(self, delivered: DeliveredBatch) -> bool:
        """Return whether the record is a requeued batch of this replica, which needs no execution.

        It is reported as finished when the outcomes of the batch are acknowledged.
        """
        run = self._by_id.pop(delivered.batch.batch_id, None)
        if run is None:
            return False
        run.last_delivery, run.requeued_as = delivered, None
        task = run.task
        if task is not None and task.done() and not (task.cancelled() or task.exception()):
            self.consumer.mark_finished(delivered.record, delivered.generation)
        return True

    def forget_partitions(self, partitions: Collection[Partition]) -> None:
        """Forget batches of revoked partitions: their next owner runs them."""
        self._by_id = {k: run for k, run in self._by_id.items() if run.partition not in partitions}

    async def _append(self, run: BatchRun, replaced: DeliveredBatch, batch: Batch) -> None:
        """Append a batch, then report the record that it replaces as finished."""
        record = replaced.record
        await self.producer.send_and_wait(
            record.topic,
            encode(batch),
            partition=record.partition,
            key=record.key,
            headers=record.headers,
        )
        self.consumer.mark_finished(record, replaced.generation)


def _rest_of(run: BatchRun, partitions: Collection[int]) -> Batch:
    """Return a batch of the jobs whose outcomes wait; no batcher's credit counts its items."""
    parts = [
        msgspec.structs.replace(part, charged=None)  # its items are settled
        for part in run.delivered.batch.parts
        if job_partition(part.job.job_id, RESULTS.partition_count) in partitions
    ]
    return Batch(new_uuid(), "", parts)
