"""Finds stalled jobs and re-emits their missing items, one job at a time, in its own thread."""

import logging
from collections import Counter
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.clock import Clock
from core.errors import MillraceError
from jobs import metrics
from jobs.expansion.job_loads import job_loads, request_counts, request_loads
from jobs.expansion.pool_capacity import PoolCapacities
from jobs.leasing.active_leases import ActiveLeases
from jobs.recovery.re_emit import ReEmitter, re_emit_due, record_job_failure
from jobs.recovery.stall_watch import StallWatch
from jobs.tables.jobs import jobs
from storage.objects.object_store import ObjectStore
from topics.clients.producer import RecordProducer

_LOG = logging.getLogger(__name__)

REQUESTS_MAX: Final = 1000
"""Watched single requests of one pool; later ones are watched as the oldest end."""


class StallRecovery:
    """Re-emits a job that stalls although its pool has capacity.

    A lost single request is re-emitted as a bulk item, so its answer reaches Postgres only; a
    caller that waits on a connection has to send the request again.
    """

    def __init__(
        self,
        engine: sa.Engine,
        objects: ObjectStore,
        producer: RecordProducer,
        leases: ActiveLeases,
        watch: StallWatch,
    ) -> None:
        """`producer` belongs to this thread alone: a flush waits for all its records."""
        self._engine = engine
        self._emitter = ReEmitter(engine, objects, producer, leases)
        self._watch = watch

    def run_once(self, capacities: PoolCapacities, clock: Clock) -> None:
        """Check open batches and the oldest single requests; re-emit the stalled ones."""
        pools, joined_s = capacities.pools(), capacities.joined_s()
        now_s = clock.monotonic_s()
        with self._engine.begin() as connection:
            loads = job_loads(connection)
            # Of every pool ever seen: a pool that comes and goes must not hide a lost request.
            requests = request_loads(connection, joined_s, REQUESTS_MAX)
            listed = Counter(load.pool for load in requests)
            crowded = [pool for pool, count in listed.items() if count >= REQUESTS_MAX]
            unlisted = request_counts(connection, crowded) - listed
        rates = {name: pool.items_per_s for name, pool in pools.items()}
        stalled = self._watch.find_stalled(loads + requests, now_s, rates, joined_s, unlisted)
        job_ids = [load.job_id for load in stalled if load.pool in pools]
        for job_id in self._find_due(job_ids):
            self._re_emit(job_id, now_s)

    def _find_due(self, job_ids: list[UUID]) -> list[UUID]:
        if not job_ids:
            return []
        due = re_emit_due(job_ids, self._watch.limit_s)
        with self._engine.begin() as connection:
            return list(connection.scalars(sa.select(jobs.c.id).where(due)))

    def _re_emit(self, job_id: UUID, now_s: float) -> None:
        due = re_emit_due([job_id], self._watch.limit_s)
        try:
            count = self._emitter.re_emit_job(job_id, due)
        except MillraceError as failure:
            record_job_failure(job_id, failure)
            count = 0
        if count is None:
            return
        self._watch.restart_wait(job_id, now_s)
        if count:
            metrics.ITEMS_REPAIRED.inc(count)
            _LOG.warning("a job was repaired", extra={"job": job_id.hex, "items": count})
