"""Finds stalled jobs and re-emits their missing items, one job at a time, in its own thread.

A job stalls if items are outstanding and nothing has changed for a while.
"""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.clock import Clock
from core.errors import MillraceError
from jobs import metrics
from jobs.expansion.emission import record_job_failure
from jobs.expansion.job_loads import request_counts, request_loads
from jobs.expansion.load_cache import LoadCache
from jobs.expansion.load_sums import JobLoad
from jobs.expansion.pool_capacity import PoolCapacities
from jobs.expansion.pool_versions import has_versions
from jobs.recovery.re_emit import ReEmitter, re_emit_due
from jobs.tables.jobs import jobs

_LOG = logging.getLogger(__name__)

_NONE: Final[Mapping[str, int]] = {}
_DRAIN_FACTOR: Final = 2.0  # times that the pool needs for everything outstanding
_DRAIN_LIMITS_MAX: Final = 60.0  # however slow the pool: lost items must be found
_JOIN_LIMITS_MAX: Final = 10.0  # replicas that join again and again must not hide a loss


@dataclass(slots=True)
class _Progress:
    """A job as it was at its last change."""

    emitted: int
    terminal: int
    since_s: float


@dataclass(slots=True)
class StallWatch:
    """Tracks since when each job has not changed, by this process's monotonic clock.

    Rows alone do not show it: a job may have waited for its window and emitted its first items just
    now. After a restart of the process every wait starts anew.
    """

    limit_s: float
    _progress: dict[UUID, _Progress] = field(default_factory=dict)

    def find_stalled(
        self,
        loads: Sequence[JobLoad],
        now_s: float,
        rates: Mapping[str, float] = _NONE,
        joined_s: Mapping[str, float] = _NONE,
        unlisted: Mapping[str, int] = _NONE,
        in_flight: Collection[UUID] = frozenset(),
    ) -> list[JobLoad]:
        """Record the current loads; return the jobs that have not changed for too long.

        The limit is `limit_s`, or longer if the pool, by its rate in items per second, needs longer
        for everything outstanding: items in a queue are not lost. The wait restarts at `joined_s`,
        when the newest replica of the pool joined, because that replica takes over the items of a
        lost one. `unlisted` counts outstanding items by pool that are not among `loads`. The wait
        also restarts while a job is in `in_flight`: a live replica has its items, however slow, and
        while a resumed job waits for its hours: then its void items are re-emitted.
        """
        before, self._progress = self._progress, {}
        outstanding = Counter(unlisted)
        for load in loads:
            outstanding[load.pool] += load.outstanding
        stalled = []
        for load in loads:
            progress = before.get(load.job_id)
            if (
                progress is None
                or (progress.emitted, progress.terminal) != (load.emitted, load.terminal)
                or not load.outstanding
                or load.job_id in in_flight
                or (load.opens_s and load.has_void_items)
            ):
                progress = _Progress(load.emitted, load.terminal, now_s)
            self._progress[load.job_id] = progress
            if now_s - progress.since_s < self.limit_s:
                continue  # the limit of a pool is no shorter
            limit_s = _limit_s(self.limit_s, outstanding[load.pool], rates.get(load.pool, 0.0))
            since_s = max(progress.since_s, joined_s.get(load.pool, 0.0))
            since_s = min(since_s, progress.since_s + _JOIN_LIMITS_MAX * self.limit_s)
            if now_s - since_s >= limit_s:
                stalled.append(load)
        return stalled

    def restart_wait(self, job_id: UUID, now_s: float) -> None:
        """Restart the wait of a job after a re-emission."""
        if progress := self._progress.get(job_id):
            progress.since_s = now_s


def _limit_s(limit_s: float, outstanding: int, items_per_s: float) -> float:
    if items_per_s <= 0:
        return limit_s
    drain_s = _DRAIN_FACTOR * outstanding / items_per_s
    return min(max(limit_s, drain_s), _DRAIN_LIMITS_MAX * limit_s)


REQUESTS_MAX: Final = 1000
"""Watched single requests of one pool; later ones are watched as the oldest end."""


@dataclass(frozen=True, slots=True)
class StallRecovery:
    """Re-emits a job that stalls although its pool has capacity for its model version.

    A lost single request is re-emitted as a bulk item, so its answer reaches Postgres only; a
    client that waits on a connection has to send the request again.
    """

    engine: sa.Engine
    emitter: ReEmitter
    watch: StallWatch
    loads: LoadCache

    def run_once(self, capacities: PoolCapacities, clock: Clock) -> None:
        """Check open batches and the oldest single requests; re-emit the stalled ones.

        Only jobs with outstanding items can stall, and only those of pools that were ever seen are
        watched: nothing else of the open jobs is read.
        """
        pools, joined_s = capacities.pools(), capacities.joined_s()
        now_s = clock.monotonic_s()
        with self.loads.current() as open_loads:
            by_pool = open_loads.outstanding_by_pool
            loads = [load for pool in joined_s for load in by_pool.get(pool, {}).values()]
        with self.engine.begin() as connection:
            # Of every pool ever seen: a pool that comes and goes must not hide a lost request.
            requests = request_loads(connection, joined_s, REQUESTS_MAX)
            listed = Counter(load.pool for load in requests)
            crowded = [pool for pool, count in listed.items() if count >= REQUESTS_MAX]
            unlisted = request_counts(connection, crowded) - listed
        rates = {name: pool.items_per_s for name, pool in pools.items()}
        in_flight = capacities.in_flight_jobs()
        watched = self.loads.results.available(loads + requests)
        stalled = self.watch.find_stalled(watched, now_s, rates, joined_s, unlisted, in_flight)
        versions = capacities.versions()
        job_ids = [
            load.job_id
            for load in stalled
            if load.pool in pools and has_versions(versions, load.pool, load.required_versions)
        ]
        for job_id in self._find_due(job_ids):
            self._re_emit(job_id, now_s)

    def _find_due(self, job_ids: list[UUID]) -> list[UUID]:
        if not job_ids:
            return []
        due = re_emit_due(job_ids, self.watch.limit_s)
        with self.engine.begin() as connection:
            return list(connection.scalars(sa.select(jobs.c.id).where(due)))

    def _re_emit(self, job_id: UUID, now_s: float) -> None:
        due = re_emit_due([job_id], self.watch.limit_s)
        try:
            count = self.emitter.re_emit_job(job_id, due)
        except MillraceError as failure:
            record_job_failure(job_id, failure, "a job cannot be emitted")
            count = 0
        if count is None:
            return
        self.watch.restart_wait(job_id, now_s)
        if count:
            metrics.ITEMS_REPAIRED.inc(count)
            _LOG.warning("a job was repaired", extra={"job": job_id.hex, "items": count})
