"""One batch in execution: its items, their answers so far, and why it was aborted."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from uuid import UUID

from core.errors import EngineOutOfMemoryError, PoolUnavailableError
from core.stages import StageTimes
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.inflight.pending_sends import PendingSends
from topics.clients.offset_tracker import Partition
from topics.records.received_record import ReceivedRecord
from topics.records.records import Batch, Item, JobRef


@dataclass(frozen=True, slots=True)
class DeliveredBatch:
    """A batch, and the record and generation with which it is reported as finished."""

    record: ReceivedRecord
    batch: Batch
    generation: int  # of the partition assignment that delivered it
    is_redelivered: bool = False  # older than the assignment: a previous owner may have run it


class BatchAbortReason(Enum):
    """Why the execution of a batch was aborted; its answers so far are published in any case."""

    REQUEUE = "requeue"  # the replica drains or its partition is revoked: requeue open items
    LOST = "lost"  # the partition is lost: its new owner runs the batch
    OBSOLETE = "obsolete"  # all its jobs are closed or expired


class ExecutionStatus(Enum):
    """How an execution ended."""

    ANSWERED = "answered"
    UNAVAILABLE = "unavailable"  # the pool could not execute
    ABORTED = "aborted"
    OUT_OF_MEMORY = "out of memory"  # the items without an answer were too many at once


@dataclass(slots=True, eq=False)
class BatchRun:
    """A delivered batch and its progress. Positions are indices into `items`."""

    delivered: DeliveredBatch
    items: list[tuple[JobRef, Item]]
    job_positions: list[int | None]  # of each item in its job's order; None: its index
    sends: PendingSends  # its outcomes and requeued items
    token_charges: list[float] = field(default_factory=list)  # of each item; empty: unknown
    answers: dict[int, EngineAnswer] = field(default_factory=dict)
    times: dict[int, StageTimes] = field(default_factory=dict)  # of answers, by position
    published: set[int] = field(default_factory=set)  # positions whose answer was sent or requeued
    released: set[int] = field(default_factory=set)  # positions whose credit is back, unanswered
    is_store_unavailable: bool = False  # items that need the object store are requeued
    abort_reason: BatchAbortReason | None = None
    abortable: asyncio.Task[None] | None = None  # the work in progress that an abort cancels
    job_tasks: list[tuple[JobRef, asyncio.Task[None]]] = field(default_factory=list)  # in progress
    task: asyncio.Task[None] | None = None  # runs the batch from its arrival to its end
    publishing: asyncio.Task[None] | None = None  # publishes answers while other items run
    has_other_version: bool = False  # its items need a model version that is not here
    is_published: bool = False  # only acknowledgements are missing
    requeued_as: UUID | None = None  # the batch id of the newest record with what is left of it
    last_delivery: DeliveredBatch | None = None  # of that record

    @property
    def partition(self) -> Partition:
        """The partition that delivered the batch."""
        return self.delivered.record.topic, self.delivered.record.partition

    @property
    def final_delivery(self) -> DeliveredBatch:
        """The delivery that is reported as finished when the batch ends."""
        return self.last_delivery or self.delivered

    @property
    def may_publish_early(self) -> bool:
        """Whether answers are not published, and no publication runs or has failed.

        A publication ends when its records are sent: acknowledgements are awaited at the end.
        """
        if len(self.answers) == len(self.published):
            return False
        last = self.publishing
        if last is None:
            return True
        return last.done() and not last.cancelled() and last.exception() is None

    def abort(self, reason: BatchAbortReason) -> None:
        """Cancel the work in progress; only the first reason counts."""
        if self.abort_reason is None:
            self.abort_reason = reason
            if self.abortable is not None:
                self.abortable.cancel()

    def abort_job(self, job: JobRef) -> None:
        """Cancel the execution of one job's items; other jobs of the batch go on."""
        for task_job, task in self.job_tasks:
            if task_job is job:
                cancel_once(task)

    async def until_aborted(self, work: Coroutine[Any, Any, None]) -> ExecutionStatus:
        """Do `work` unless the batch is aborted; return how it ended.

        Raises what `work` raises, except the failures that are an ExecutionStatus.
        """
        if self.abort_reason is not None:
            work.close()
            return ExecutionStatus.ABORTED
        # In its own task: an abort cancels the work alone, never the publishing that follows.
        task = self.abortable = asyncio.create_task(work)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            self.abortable = None
        if task.cancelled():
            return ExecutionStatus.ABORTED
        failure = task.exception()
        if failure is None:
            return ExecutionStatus.ANSWERED
        if not is_survivable(failure):
            raise failure
        if isinstance(failure, PoolUnavailableError):
            return ExecutionStatus.UNAVAILABLE
        return ExecutionStatus.OUT_OF_MEMORY


def cancel_once(task: asyncio.Task[None]) -> None:
    """Cancel a task, unless it is being cancelled: a second time would interrupt its clean-up."""
    if not task.cancelling():
        task.cancel()


def is_survivable(failure: BaseException) -> bool:
    """Return whether the failure ends an execution and not the process."""
    return isinstance(failure, PoolUnavailableError | EngineOutOfMemoryError | MemoryError)
