"""Finds stalled jobs and repairs them, one at a time, in a thread of its own."""

import logging
from uuid import UUID

import sqlalchemy as sa

from core.clock import Clock
from core.errors import Disposition, LeaseLostError, MillraceError
from core.states import JobKind
from jobs import metrics
from jobs.capacity import PoolCapacities
from jobs.expander import FLUSH_TIMEOUT_S
from jobs.held_leases import HeldLeases
from jobs.leases import Lease
from jobs.progress import job_loads, open_jobs
from jobs.repair import emit_again, mark_repaired, missing_indexes, repair_due
from jobs.retry_queue import attempts_so_far
from jobs.stalls import StallWatch
from jobs.tables import jobs
from storage.objects import ObjectStore
from topics.producer import LogProducer

_LOG = logging.getLogger(__name__)


class Repairs:
    """Repairs a job when it stands still although its pool could work.

    A single request that was lost comes again as a bulk item, so its answer reaches Postgres only;
    who waits for it on a connection asks again.
    """

    def __init__(
        self,
        engine: sa.Engine,
        objects: ObjectStore,
        producer: LogProducer,
        leases: HeldLeases,
        watch: StallWatch,
    ) -> None:
        """`producer` is of this thread alone: a flush waits for what others send, too."""
        self._engine = engine
        self._objects = objects
        self._producer = producer
        self._leases = leases
        self._watch = watch

    def step(self, capacities: PoolCapacities, clock: Clock) -> None:
        """Look once at all open jobs and repair those that are due."""
        with self._engine.begin() as connection:
            loads = [load for kind in JobKind for load in job_loads(connection, kind)]
        pools, now_s = capacities.pools(), clock.monotonic_s()
        rates = {name: pool.items_per_s for name, pool in pools.items()}
        stalled = self._watch.stalled(loads, now_s, rates)
        job_ids = [load.job_id for load in stalled if load.pool in pools]
        for job_id in self._due(job_ids):
            self._repair(job_id, now_s)

    def _due(self, job_ids: list[UUID]) -> list[UUID]:
        if not job_ids:
            return []
        due = repair_due(job_ids, self._watch.limit_s)
        with self._engine.begin() as connection:
            return list(connection.scalars(sa.select(jobs.c.id).where(due)))

    def _repair(self, job_id: UUID, now_s: float) -> None:
        """Use the lease of this process when it expands the job, else take one for the moment."""
        lease = held = self._leases.lease_of(job_id)
        if lease is None:
            claimed = self._leases.claim(repair_due([job_id], self._watch.limit_s), 1)
            if not claimed:
                return  # another replica has it
            (lease,) = claimed
        try:
            self._repair_with(lease)
        except BaseException:
            if held is None:  # or heartbeats would keep the job from whoever expands it
                self._leases.put_aside(lease)
            raise
        self._watch.restart(job_id, now_s)
        if held is None:
            self._leases.release(lease)

    def _repair_with(self, lease: Lease) -> None:
        job_id = lease.job_id
        try:
            count = self._emit(lease)
            metrics.ITEMS_REPAIRED.inc(count)
            _LOG.warning("a job was repaired", extra={"job": job_id.hex, "items": count})
        except LeaseLostError:
            _LOG.info("another replica repairs a job", extra={"job": job_id.hex})
        except MillraceError as failure:
            if failure.disposition is Disposition.CRASH:
                raise
            metrics.JOB_FAILURES.inc()
            _LOG.error("a job cannot be repaired", extra={"job": job_id.hex, "code": failure.code})

    def _emit(self, lease: Lease) -> int:
        with self._engine.begin() as connection:
            job = open_jobs(connection, [lease.job_id]).get(lease.job_id)
            indexes = missing_indexes(connection, job) if job else []
            failed = attempts_so_far(connection, lease.job_id, indexes)
        if job is None:
            return 0
        count = emit_again(self._producer, self._objects, job.ref, indexes, failed)
        self._producer.flush(FLUSH_TIMEOUT_S)
        with self._engine.begin() as connection:
            mark_repaired(connection, lease)
        return count
