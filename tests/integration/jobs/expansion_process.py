"""The expansion of one intake process."""

from uuid import UUID

import sqlalchemy as sa

from core.clock import SystemClock
from core.states import JobKind
from jobs.expansion.backlog_sums import BacklogSums
from jobs.expansion.expander import Expander
from jobs.expansion.job_loads import OPEN, RUNNING, find_leases, loads_query
from jobs.expansion.leased_jobs import LeasedJobs
from jobs.expansion.load_cache import LoadCache, OpenLoads
from jobs.expansion.load_sums import JobLoad, LoadSums
from jobs.expansion.result_partitions import ResultPartitions
from jobs.leasing.active_leases import ActiveLeases
from jobs.leasing.job_backoff import JobBackoff
from jobs.tables.jobs import jobs
from storage.objects.local_object_store import LocalObjectStore
from tests.integration.jobs.rows import execute
from topics.clients.producer import RecordProducer


def job_loads(connection: sa.Connection) -> list[JobLoad]:
    """Return the load of every open batch, oldest first, counted from rows."""
    query = loads_query(JobKind.BATCH).where(OPEN).order_by(jobs.c.created_at, jobs.c.id)
    return [JobLoad(*row) for row in connection.execute(query)]


def assert_equal_loads(cached: OpenLoads, connection: sa.Connection) -> list[JobLoad]:
    """Compare the loads of a cache with those counted from rows, except for the time left.

    Return the counted ones.
    """
    counted = job_loads(connection)
    expected = {load.job_id: load._replace(left_s=0.0) for load in counted}
    assert {k: load._replace(left_s=0.0) for k, load in cached.by_id.items()} == expected
    assert cached.leases == find_leases(connection)
    assert cached.sums == LoadSums.of(cached.by_id.values())
    assert cached.outstanding == sum(load.outstanding for load in counted)
    with_outstanding = {load.job_id for load in counted if load.outstanding}
    assert {i for by_id in cached.outstanding_by_pool.values() for i in by_id} == with_outstanding
    assert_equal_backlog(cached, connection)
    assert cached.copies_left == {load.job_id for load in counted if load.has_only_copies_left}
    return counted


def assert_equal_backlog(cached: OpenLoads, connection: sa.Connection) -> None:
    """Compare what is held back, and the backlog, with those counted from rows."""
    query = loads_query(JobKind.BATCH).where(RUNNING, sa.not_(OPEN))
    counted = [JobLoad(*row) for row in connection.execute(query)]
    blocked = {load.job_id: load._replace(left_s=0.0) for load in counted}
    assert {k: load._replace(left_s=0.0) for k, load in cached.blocked.items()} == blocked
    backlog = BacklogSums()
    for load in cached.by_id.values():
        backlog.replace(None, load)
    for load in counted:
        backlog.replace(None, load, is_blocked=True)
    assert not cached.backlog.differs_from(backlog)


class ExpansionProcess:
    """Leases and expands jobs at the request of a test."""

    def __init__(
        self,
        engine: sa.Engine,
        objects: LocalObjectStore,
        producer: RecordProducer,
        holder: str = "a",
    ) -> None:
        self.engine = engine
        self.leases = ActiveLeases(engine, role="intake", holder=holder, ttl_s=60)
        clock = SystemClock()
        self.cache = LoadCache(engine, ResultPartitions())
        self.jobs = LeasedJobs(engine, self.leases, clock)
        longest = JobBackoff(fraction=lambda: 1.0)
        self.expander = Expander(engine, objects, producer, self.jobs, clock, backoff=longest)

    def loads(self) -> list[JobLoad]:
        """Return all loads as counted from rows; those of the cache are the same."""
        with self.cache.current() as cached, self.engine.begin() as connection:
            return assert_equal_loads(cached, connection)

    def lease_states(self) -> dict[UUID, bool]:
        """Return the leased jobs of all processes, and whether each lease is suspended."""
        with self.engine.begin() as connection:
            return {job_id: one.is_suspended for job_id, one in find_leases(connection).items()}

    def claim(self) -> None:
        """Lease all jobs without a holder."""
        states = self.lease_states()  # a suspended lease is tried, too
        free = [load.job_id for load in self.loads() if states.get(load.job_id) is not False]
        self.jobs.acquire([*self.jobs.ids, *free], 10)

    def lease_jobs(self) -> None:
        """Claim, reload and release jobs, as a round does before it emits."""
        loads = self.loads()
        self.jobs.acquire([load.job_id for load in loads if load.remaining], 10)
        self.jobs.reload_changed({load.job_id: load for load in loads})
        self.jobs.release_finished({load.job_id for load in loads})

    def emit_all(self, *, at_once: int = 100) -> None:
        """Run rounds until no item remains, with new readers for each round."""
        while loads := [load for load in self.loads() if load.remaining]:
            self.jobs.close()
            self.lease_jobs()
            self.expander.run_once({load.job_id: min(at_once, load.remaining) for load in loads})

    def die(self) -> None:
        """Expire all leases without releasing them."""
        self.jobs.close()
        execute(self.engine, "UPDATE job_leases SET expires_at = now()")
