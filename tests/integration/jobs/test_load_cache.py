"""Goal: loads in memory are those of the rows, in whatever order transactions commit."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from jobs import metrics
from jobs.expansion.job_loads import ROLE
from jobs.expansion.load_cache import CHANGES, LoadCache, changes_since
from jobs.expansion.load_sums import PoolLoad
from jobs.expansion.pool_versions import required_versions
from jobs.expansion.result_partitions import ResultPartitions
from jobs.leasing import leases
from jobs.tables.jobs import job_counters, job_cursors, jobs
from tenancy.tables import tenants
from tests.integration.jobs.expansion_process import assert_equal_loads
from tests.integration.jobs.rows import (
    add_job,
    add_running_job,
    add_tenant,
    execute,
    without_guards,
)

STEPS = 150


class History:
    """Random changes of jobs in transactions that overlap, each of other jobs."""

    def __init__(self, engine: sa.Engine, seed: int) -> None:
        self.engine = engine
        self.draw = random.Random(seed)
        self.closing = ExitStack()
        self.open: dict[sa.Connection, set[UUID]] = {}
        with engine.begin() as connection:
            self.tenants = [add_tenant(connection) for _ in range(2)]
            self.job_ids = [self.add_job(connection) for _ in range(8)]
            self.new_ids = [self.add_new_job(connection) for _ in range(4)]

    def add_new_job(self, connection: sa.Connection) -> UUID:
        """Add a job without a verdict: its model, version and pool are not known."""
        return add_job(connection, self.draw.choice(self.tenants))

    def add_job(self, connection: sa.Connection) -> UUID:
        pool = self.draw.choice(["pool-small", "other"])
        return add_running_job(connection, self.draw.choice(self.tenants), 300, pool=pool)

    def step(self) -> None:
        """Begin a transaction, change a job in one, or end one."""
        act = self.draw.choice(["begin", "change", "change", "change", "verdict", "end", "lease"])
        if act == "begin" and len(self.open) < 3:
            self.open[self.closing.enter_context(self.engine.connect())] = set()
        elif act == "change" and self.open:
            self.change(self.draw.choice([*self.open]), self.job_ids, self.statement)
        elif act == "verdict" and self.open:
            if len(self.new_ids) < STEPS // 10:
                with self.engine.begin() as connection:
                    self.new_ids.append(self.add_new_job(connection))
            self.change(self.draw.choice([*self.open]), self.new_ids, self.verdict)
        elif act == "end" and self.open:
            connection = self.draw.choice([*self.open])
            self.draw.choice([connection.commit, connection.commit, connection.rollback])()
            self.open[connection] = set()
        elif act == "lease":
            self.change_leases()

    def change(
        self,
        connection: sa.Connection,
        job_ids: list[UUID],
        statement: Callable[[UUID], sa.Update],
    ) -> None:
        busy = set().union(*(ids for other, ids in self.open.items() if other is not connection))
        free = [job_id for job_id in job_ids if job_id not in busy]
        if not free:
            return
        job_id = self.draw.choice(free)
        self.open[connection].add(job_id)
        connection.execute(statement(job_id))

    def verdict(self, job_id: UUID) -> sa.Update:
        """Return what accepts, refuses, cancels or changes a job during its validation."""
        cancelled = {"state": "cancelling", "close_reason": "cancelled"}
        accepted = {"model": "small", "model_version": "1", "pool": "other", "total_count": 300}
        choices: list[dict[str, Any]] = [
            {"state": "in_progress"} | accepted,
            {"state": "failed", "failed_at": sa.func.now()},
            cancelled | {"cancelling_at": sa.func.now()},
            {"priority": self.draw.randrange(10)},
        ]
        is_due = (jobs.c.id == job_id, jobs.c.state == "validating")
        return sa.update(jobs).where(*is_due).values(self.draw.choice(choices))

    def statement(self, job_id: UUID) -> sa.Update:
        cursor, counted, version = job_cursors.c, job_counters.c, jobs.c.control_version + 1
        choices: list[tuple[sa.Table, dict[str, Any]]] = [
            (job_cursors, {"item_index": sa.func.least(300, cursor.item_index + 50)}),
            (job_cursors, {"void_below": cursor.void_below + 1}),
            (job_counters, {"succeeded": counted.succeeded + 5}),
            (jobs, {"priority": self.draw.randrange(10)}),
            (jobs, {"paused_at": self.draw.choice([sa.null(), sa.func.now()])}),
            (jobs, {"void_below": version, "control_version": version}),
        ]
        if self.draw.random() < 0.1:
            choices = [(jobs, {"close_reason": "expired"})]
        table, values = self.draw.choice(choices)
        key = table.c.id if table is jobs else table.c.job_id
        return sa.update(table).where(key == job_id).values(values)

    def change_leases(self) -> None:
        with self.engine.begin() as connection:
            where = jobs.c.id == self.draw.choice(self.job_ids)
            claimed = leases.claim(
                connection, role=ROLE, holder="a", ttl_s=60, limit=1, where=where
            )
            if claimed:  # a claim skips locked jobs
                change = self.draw.choice([leases.suspend, leases.release, lambda *_: None])
                change(connection, claimed[0])


@pytest.fixture(params=[1, 2])
def history(engine: sa.Engine, request: pytest.FixtureRequest) -> Iterator[History]:
    made = History(engine, request.param)
    with made.closing:
        yield made


@pytest.fixture
def cache(engine: sa.Engine) -> LoadCache:
    return LoadCache(engine, ResultPartitions())


def assert_current(cache: LoadCache) -> None:
    with cache.current() as cached, cache.engine.begin() as connection:
        assert_equal_loads(cached, connection)


def test_loads_are_those_of_the_rows_after_any_history(history: History, cache: LoadCache) -> None:
    for number in range(STEPS):
        history.step()
        assert_current(cache)
        if number % 50 == 49:
            cache.reconcile()
    mismatches = metrics.LOAD_MISMATCHES._value.get()
    cache.reconcile()
    assert metrics.LOAD_MISMATCHES._value.get() == mismatches


def test_jobs_without_a_verdict_have_no_load_whatever_becomes_of_them(
    engine: sa.Engine, cache: LoadCache
) -> None:
    """Their columns of the model are NULL."""
    assert_current(cache)
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        invalid, cancelled, _ = (add_job(connection, tenant_id) for _ in range(3))
    assert_current(cache)
    update = sa.update(jobs).values(failed_at=sa.func.now())
    execute(engine, update.where(jobs.c.id == invalid).values(state="failed"))
    update = sa.update(jobs).values(state="cancelling", close_reason="cancelled")
    execute(engine, update.where(jobs.c.id == cancelled))
    assert_current(cache)
    with cache.current() as loads:
        assert not loads.by_id


def test_a_transaction_that_commits_late_is_read(engine: sa.Engine, cache: LoadCache) -> None:
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        early, late = (add_running_job(connection, tenant_id, 300) for _ in range(2))
    assert_current(cache)
    emitted = sa.update(job_cursors).values(item_index=100)
    with engine.begin() as slow:
        slow.execute(emitted.where(job_cursors.c.job_id == late))
        execute(engine, emitted.where(job_cursors.c.job_id == early))
        with cache.current() as loads:
            assert (loads.by_id[early].emitted, loads.by_id[late].emitted) == (100, 0)
    with cache.current() as loads:
        assert loads.by_id[late].emitted == 100


def test_a_reconciliation_counts_and_mends_what_no_trigger_marked(
    engine: sa.Engine, cache: LoadCache
) -> None:
    with engine.begin() as connection:
        job_id = add_running_job(connection, add_tenant(connection), 300)
    assert_current(cache)
    with engine.begin() as connection:
        without_guards(connection)
        connection.execute(sa.update(job_cursors).values(item_index=100))
    with cache.current() as loads:
        assert loads.by_id[job_id].emitted == 0
    before = metrics.LOAD_MISMATCHES._value.get()
    cache.reconcile()
    assert metrics.LOAD_MISMATCHES._value.get() == before + 1
    assert_current(cache)


def test_the_loads_of_another_server_are_read_anew(engine: sa.Engine, cache: LoadCache) -> None:
    """Its snapshots may have other transactions under the same numbers."""
    with engine.begin() as connection:
        job_id = add_running_job(connection, add_tenant(connection), 300)
    with cache.current() as loads:
        loads.server, loads.snapshot = "another", "9000000:9000000:"
    execute(engine, sa.update(job_cursors).values(item_index=100))
    with cache.current() as loads:
        assert loads.by_id[job_id].emitted == 100


def test_rows_of_a_dump_from_an_older_cluster_are_read_once(
    engine: sa.Engine, cache: LoadCache
) -> None:
    """Otherwise they would count as changed until this cluster has reached their numbers."""
    with engine.begin() as connection:
        add_running_job(connection, add_tenant(connection), 300)
        without_guards(connection)
        connection.execute(sa.update(job_cursors).values(changed_xid=10**15))
    assert_current(cache)
    with cache.current() as loads, engine.begin() as connection:
        (row,) = connection.execute(CHANGES, changes_since(loads.snapshot))
    assert row.id is None


def test_jobs_of_unavailable_partitions_do_not_count(engine: sa.Engine, cache: LoadCache) -> None:
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        away, other = (add_running_job(connection, tenant_id, 300, id=UUID(int=n)) for n in (3, 4))
    with cache.current() as loads:
        assert loads.sums.by_pool["pool-small"].unfinished == 600
    cache.results._unavailable = frozenset({3})
    with cache.current() as loads:
        assert loads.sums.by_pool["pool-small"].unfinished == 300
        assert loads.find(away) is None
        assert loads.find(other) is not None
        assert len(loads.by_id) == 2


def test_jobs_follow_the_hours_of_their_tenant(engine: sa.Engine, cache: LoadCache) -> None:
    """A tenant's row is no part of what marks a change of its jobs."""
    with engine.begin() as connection:
        tenant_id, other_id = (add_tenant(connection) for _ in range(2))
        jobs_of = [add_running_job(connection, owner, 300) for owner in (tenant_id, other_id)]
        hour = connection.scalar(sa.text("SELECT extract(hour FROM now() AT TIME ZONE 'UTC')"))
    closed = f"{(int(hour or 0) + 5) % 24:02}:00-{(int(hour or 0) + 6) % 24:02}:00 UTC"

    def emitting() -> list[bool]:
        with cache.current() as loads:
            loads.openings._refresh_s = 0.0  # as two seconds later
        with cache.current() as loads:
            return [loads.by_id[job_id].remaining > 0 for job_id in jobs_of]

    assert emitting() == [True, True]
    mine = sa.update(tenants).where(tenants.c.id == tenant_id)
    execute(engine, mine.values(bulk_hours=closed))
    assert emitting() == [False, True]
    with cache.current() as loads:
        assert loads.sums.by_pool["pool-small"].unfinished == 300
    before = metrics.LOAD_MISMATCHES._value.get()
    execute(engine, mine.values(bulk_hours=None))
    cache.reconcile()  # reads the hours at once
    assert metrics.LOAD_MISMATCHES._value.get() == before
    assert emitting() == [True, True]


def test_a_load_names_the_versions_of_base_models_that_its_job_needs(engine: sa.Engine) -> None:
    pins: dict[str, Any] = {
        "one": None,
        "an adapter": {"a": {"version": "a1", "base_version": "b1"}},
        "several": {
            "m": {"version": "v2", "base_version": ""},
            "n": {"version": "v1", "base_version": None},
            "a": {"version": "a1", "base_version": "v1"},
        },
    }
    with engine.begin() as connection:
        tenant = add_tenant(connection)
        ids = {
            name: add_running_job(
                connection,
                tenant,
                300,
                model_version="v0",
                models=sa.null() if models is None else models,
            )
            for name, models in pins.items()
        }
        rows = {
            name: connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).one()
            for name, job_id in ids.items()
        }
    cache = LoadCache(engine, ResultPartitions())
    with cache.current() as loads:
        found = {name: loads.by_id[job_id].required_versions for name, job_id in ids.items()}
    assert found == {"one": "v0", "an adapter": "b1+", "several": "v1\nv1+\nv2"}
    assert found == {name: required_versions(row) for name, row in rows.items()}


def test_a_job_whose_versions_are_not_known_yet_has_no_load(engine: sa.Engine) -> None:
    """Its file is not validated, so it is not open; the row has no version."""
    cache = LoadCache(engine, ResultPartitions())
    with cache.current() as loads:
        assert not loads.by_id
    with engine.begin() as connection:
        tenant = add_tenant(connection)
        add_job(connection, tenant)
        running = add_running_job(connection, tenant, 300)
    with cache.current() as loads:
        assert [*loads.by_id] == [running]


def test_a_job_whose_version_no_replica_has_takes_no_part_until_one_has(
    engine: sa.Engine,
) -> None:
    with engine.begin() as connection:
        tenant = add_tenant(connection)
        new = add_running_job(connection, tenant, 300, pool="pool-small", model_version="v2")
        old = add_running_job(connection, tenant, 300, pool="pool-small", model_version="v1")
    cache = LoadCache(engine, ResultPartitions())
    for versions, expected in (
        ({}, {new, old}),
        ({"pool-small": frozenset({"v1"})}, {old}),
        ({"pool-small": frozenset({"v1", "v2"})}, {new, old}),
    ):
        cache.versions.update(versions)
        with cache.current() as loads:
            assert {load.job_id for load in loads.counted()} & {new, old} == expected
            assert {one for one in (new, old) if loads.find(one)} == expected
        cache.reconcile()


def test_the_items_of_a_job_whose_version_no_replica_has_still_occupy_the_batchers(
    engine: sa.Engine, cache: LoadCache
) -> None:
    """After each rollout a whole window more would be in their buffers."""
    with engine.begin() as connection:
        tenant = add_tenant(connection)
        ids = {
            version: add_running_job(
                connection, tenant, 300, model_version=version, input_bytes=3000
            )
            for version in ("a", "b", "c")
        }
    execute(engine, sa.update(job_cursors).values(item_index=100))

    def stranded() -> tuple[int, int]:
        with cache.current() as loads:
            pool = loads.unserved.by_pool.get("pool-small", PoolLoad())
            assert loads.sums.by_pool["pool-small"].outstanding + pool.outstanding == 300 - ended
            return pool.outstanding, pool.outstanding_bytes

    ended = 0
    assert stranded() == (0, 0)
    cache.versions.update({"pool-small": frozenset("b")})
    assert stranded() == (200, 2000)
    cache.versions.update({"pool-small": frozenset("c")})
    assert stranded() == (200, 2000)
    ended = 60
    of_b = job_counters.c.job_id == ids["b"]
    execute(engine, sa.update(job_counters).where(of_b).values(succeeded=ended))
    assert stranded() == (140, 1400)
    cache.reconcile()
    assert stranded() == (140, 1400)
    cache.versions.update({})
    assert stranded() == (0, 0)
