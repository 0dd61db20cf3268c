"""Emits what a job lacks below its cursor, under the lease that its expansion is fenced by."""

import logging
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.errors import LeaseLostError, MillraceError
from jobs import metrics
from jobs.expansion.cursors import fence
from jobs.expansion.failure_scope import is_of_one_job
from jobs.expansion.job_loads import OpenJob, open_jobs
from jobs.leasing.lease_heartbeat import HeldLeases
from jobs.leasing.leases import Lease, require
from jobs.recovery.repair import emit_again, looks, mark_repaired, missing_indexes
from jobs.recovery.retry_queue import attempts_so_far
from jobs.tables.jobs import jobs
from storage.objects.object_store import ObjectStore
from topics.clients.producer import RecordProducer

_LOG: Final = logging.getLogger(__name__)


class EmittingAgain:
    """Emits every index below the cursor that has no row and waits for no retry."""

    def __init__(
        self,
        engine: sa.Engine,
        objects: ObjectStore,
        producer: RecordProducer,
        leases: HeldLeases,
    ) -> None:
        """`producer` is of this thread alone: a flush waits for what others send, too."""
        self._engine = engine
        self._objects = objects
        self._producer = producer
        self._leases = leases

    def emit(self, job_id: UUID, due: sa.ColumnElement[bool]) -> int | None:
        """Emit for one job; return how many items, None where another replica has it.

        Uses the lease of this process when it expands the job, else takes one for the moment while
        `due` holds. Raises what is wrong with this job (see `tell`), DeliveryError, and one of
        DATABASE_AWAY.
        """
        lease = held = self._leases.lease_of(job_id)
        if lease is None:
            claimed = self._leases.claim(due, 1)
            if not claimed:
                return None  # another replica has it
            (lease,) = claimed
        try:
            count = self._emit(lease)
        except BaseException:
            if held is None:  # or heartbeats would keep the job from whoever expands it
                self._leases.put_aside(lease)
            raise
        if held is None:
            self._leases.release(lease)
        return count

    def _emit(self, lease: Lease) -> int:
        try:
            return self._emit_missing(lease)
        except LeaseLostError:
            _LOG.info("another replica emits again", extra={"job": lease.job_id.hex})
        return 0

    def _emit_missing(self, lease: Lease) -> int:
        """Emit what one job lacks; return how many items. Raises LeaseLostError.

        1. Fence and read the cursor, under the lock of the lease, and commit. 2. Look for what is
        missing below that cursor, without a lock: heartbeats must pass. 3. Require the lease once
        more, emit, and note it. From 1 on only records that are not void move the cursor, so
        nothing is missing above it. What gets its row, or another holder, behind a look is emitted
        twice at worst, which every reader takes.
        """
        with self._engine.begin() as connection:
            void_below = connection.scalar(
                sa.select(jobs.c.void_below).where(jobs.c.id == lease.job_id)
            )
            fence(connection, lease, void_below or 0)
            job = open_jobs(connection, [lease.job_id]).get(lease.job_id)
        if job is None:
            return 0
        indexes, failed = self._missing(job)
        with self._engine.begin() as connection:
            require(connection, lease)
        count = emit_again(self._producer, self._objects, job, indexes, failed)
        self._producer.flush()
        with self._engine.begin() as connection:
            mark_repaired(connection, lease, void_below or 0)
        return count

    def _missing(self, job: OpenJob) -> tuple[list[int], dict[int, int]]:
        """Return the indexes without a row, in order, and the last failed attempt of each."""
        indexes: list[int] = []
        failed: dict[int, int] = {}
        # One snapshot: an item that ends between the two has its row, and is not tried once more.
        snapshots = self._engine.execution_options(isolation_level="REPEATABLE READ")
        for span in looks(job.cursor.item_index):
            with snapshots.begin() as connection:
                found = missing_indexes(connection, job, span)
                failed |= attempts_so_far(connection, job.ref.job_id, found)
            indexes += found
        return indexes, failed


def tell(job_id: UUID, failure: MillraceError) -> None:
    """Count and log what is wrong with one job; raise what is wrong with this process."""
    if not is_of_one_job(failure):
        raise failure
    metrics.JOB_FAILURES.inc()
    facts = {"job": job_id.hex, "code": failure.code, "facts": failure.facts}
    _LOG.error("a job cannot be emitted", extra=facts)
