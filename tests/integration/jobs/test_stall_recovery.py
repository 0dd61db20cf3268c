"""Goal: exactly the lost items of a stalled job are re-emitted; no other job is touched."""

from collections.abc import Callable
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from jobs.expansion.job_loads import OpenJob, request_loads
from jobs.expansion.load_cache import LoadCache
from jobs.expansion.pool_capacity import PoolCapacities
from jobs.expansion.result_partitions import ResultPartitions
from jobs.leasing import leases
from jobs.leasing.active_leases import ActiveLeases
from jobs.recovery import re_emit
from jobs.recovery.re_emit import ReEmitter, re_emit_due
from jobs.recovery.stall_recovery import StallRecovery, StallWatch
from jobs.tables.jobs import job_counters, job_cursors, job_leases, jobs
from jobs.tables.retries import item_attempts, item_retries
from storage.postgres.database_times import seconds
from tests.integration.jobs.log_reader import chunks_by_partition
from tests.integration.jobs.rows import (
    add_item_row,
    add_running_job,
    add_tenant,
    database_away,
    execute,
)
from tests.integration.jobs.stores import Stores
from tests.support.capacity_records import capacity_record
from tests.support.clock import ManualClock
from topics.records.records import Chunk

STALL_S = 60.0
DONE = {0, 1, 2, 5, 6, 299}
CURSOR = 300
EXPECTED_OUTPUT = 900.0
"""Tokens of a sequence, as the emitter knows them."""


@pytest.fixture
def job_id(engine: sa.Engine, store_lines: Callable[[str, int], None]) -> UUID:
    """A job of 400 items, 300 of them emitted, without change for two minutes."""
    store_lines("in", 400)
    with engine.begin() as connection:
        job_id = add_running_job(
            connection,
            add_tenant(connection),
            400,
            cursor={"item_index": CURSOR, "byte_offset": 1, "line_number": CURSOR},
            counters={"succeeded": len(DONE), "updated_at": sa.text("now() - interval '2 min'")},
        )
        add_item_row(connection, job_id, *DONE)
    return job_id


class Recovery:
    """A stall recovery with a manual clock."""

    def __init__(self, stores: Stores, holder: str = "a") -> None:
        self.engine, objects, producer, self._kafka = stores
        self.clock = ManualClock()
        self.capacities = PoolCapacities(self.clock)
        self.leases = ActiveLeases(self.engine, role="intake", holder=holder, ttl_s=60)
        self._recovery = StallRecovery(
            self.engine,
            ReEmitter(self.engine, objects, producer, self.leases, lambda _: EXPECTED_OUTPUT),
            StallWatch(STALL_S),
            LoadCache(self.engine, ResultPartitions()),
        )

    def run(
        self,
        at_s: float,
        *,
        pool_is_up: bool = True,
        items_per_s: float = 1e6,
        in_flight_jobs: list[UUID] | None = None,
    ) -> None:
        self.clock.now_s = at_s
        record = capacity_record(
            "r", items_per_s, available=pool_is_up, in_flight_jobs=in_flight_jobs
        )
        self.capacities.update([record])
        self._recovery.run_once(self.capacities, self.clock)

    def stall(self) -> None:
        """Run at the first look and when an unchanged job has stalled."""
        self.run(0)
        self.run(STALL_S)

    def chunks(self) -> list[Chunk]:
        """Return the emitted chunks."""
        return [c for chunks in chunks_by_partition(self._kafka).values() for c in chunks]

    def indexes(self) -> list[int]:
        """Return the indexes of the emitted items, sorted, repeats included."""
        return sorted(item.index for chunk in self.chunks() for item in chunk.items)


@pytest.fixture
def recovery(stores: Stores) -> Recovery:
    return Recovery(stores)


def test_exactly_the_missing_items_are_re_emitted(job_id: UUID, recovery: Recovery) -> None:
    recovery.run(0)
    recovery.run(STALL_S - 1)
    assert recovery.indexes() == []
    recovery.run(STALL_S)
    missing = sorted(set(range(CURSOR)) - DONE)
    assert recovery.indexes() == missing
    for chunk in recovery.chunks():
        assert all(item.custom_id == f"id-{item.index}" for item in chunk.items)
    assert recovery.leases.lease_of(job_id) is None
    recovery.run(STALL_S + 1)
    recovery.run(3 * STALL_S)  # stalled again by this clock, but not by the database's
    assert recovery.indexes() == missing
    earlier = sa.text("now() - interval '2 min'")
    execute(recovery.engine, sa.update(job_cursors).values(repaired_at=earlier))
    recovery.run(3 * STALL_S + 1)
    assert recovery.indexes() == sorted(missing * 2)


def test_a_re_emitted_item_counts_the_output_that_results_let_expect(
    job_id: UUID, recovery: Recovery
) -> None:
    execute(recovery.engine, "UPDATE jobs SET endpoint = '/v1/chat/completions'")
    recovery.stall()
    items = [item for chunk in recovery.chunks() for item in chunk.items]
    assert len(items) == CURSOR - len(DONE)
    assert all(i.token_count == len(i.body) // 4 + EXPECTED_OUTPUT for i in items)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE jobs SET close_reason = 'expired'",
        "UPDATE jobs SET settled_at = now()",
        "UPDATE job_cursors SET repaired_at = now()",
        "UPDATE job_counters SET updated_at = now()",
        "UPDATE job_counters SET succeeded = 300",
        None,  # its pool is unavailable
    ],
)
def test_a_job_that_is_not_stalled_is_not_re_emitted(
    job_id: UUID, recovery: Recovery, statement: str | None
) -> None:
    if statement is not None:
        execute(recovery.engine, statement)
    for at_s in (0, STALL_S):
        recovery.run(at_s, pool_is_up=statement is not None)
    assert recovery.indexes() == []


def test_only_the_holder_of_a_job_re_emits_it(job_id: UUID, recovery: Recovery) -> None:
    other = ActiveLeases(recovery.engine, role="intake", holder="b", ttl_s=60)
    (held,) = other.claim(sa.true(), 1)
    recovery.stall()
    assert recovery.indexes() == []
    other.release(held)
    (ours,) = recovery.leases.claim(sa.true(), 1)
    recovery.run(2 * STALL_S)
    assert len(recovery.indexes()) == CURSOR - len(DONE)
    assert recovery.leases.is_leased(ours)


def test_ten_intakes_re_emit_no_item_of_a_live_replica(job_id: UUID, stores: Stores) -> None:
    intakes = [Recovery(stores, f"intake-{number}") for number in range(10)]
    slow_s = 1800 * STALL_S  # one item runs so long; the others are on the replica too
    for at_s in range(0, int(slow_s), int(slow_s / 20)):
        for intake in intakes:
            intake.run(at_s, in_flight_jobs=[job_id])
    assert intakes[0].indexes() == []
    for intake in intakes:  # the replica has lost them
        intake.run(slow_s, in_flight_jobs=[])
        intake.run(slow_s + STALL_S)
    assert intakes[0].indexes() == sorted(set(range(CURSOR)) - DONE)


def test_re_emissions_without_effect_back_off_in_all_intakes(
    job_id: UUID, stores: Stores, recovery: Recovery
) -> None:
    """The database's clock is the one that counts, so the last re-emission moves into the past."""

    def re_emits_after(past_s: float, *, progressed_s: float = 86_400) -> bool:
        times = {job_cursors.c.repaired_at: past_s, job_counters.c.updated_at: progressed_s}
        for column, ago_s in times.items():
            at = sa.func.now() - seconds(ago_s)
            execute(recovery.engine, sa.update(column.table).values({column.name: at}))
        before = len(recovery.indexes())
        Recovery(stores, "restarted").stall()
        return len(recovery.indexes()) > before

    recovery.stall()
    assert not re_emits_after(2 * STALL_S - 30)
    assert re_emits_after(2 * STALL_S)
    assert not re_emits_after(4 * STALL_S - 30)
    assert re_emits_after(4 * STALL_S)
    assert re_emits_after(8 * STALL_S - 30, progressed_s=STALL_S)
    assert re_emits_after(2 * STALL_S)
    for _ in range(6):
        assert re_emits_after(64 * STALL_S)
    assert not re_emits_after(64 * STALL_S - 30)


@pytest.fixture
def requests(engine: sa.Engine, store_lines: Callable[[str, int], None]) -> list[UUID]:
    """Lost single requests, the oldest first: four of one pool, then one of another."""
    store_lines("in", 1)
    added: list[UUID] = []
    for pool in (*["pool-small"] * 4, "other"):
        with engine.begin() as connection:
            one = add_running_job(
                connection,
                add_tenant(connection),
                1,
                kind="request",
                input_file_id=None,
                pool=pool,
                cursor={"item_index": 1, "byte_offset": 1, "line_number": 1},
                counters={"updated_at": sa.text("now() - interval '2 min'")},
            )
        added.append(one)
    return added


def test_the_oldest_requests_of_each_pool_are_watched(
    engine: sa.Engine, requests: list[UUID]
) -> None:
    with engine.begin() as connection:
        both = request_loads(connection, ["pool-small", "other", "third"], 3)
        one = request_loads(connection, ["other"], 3)
    assert [load.job_id for load in both] == [*requests[:3], requests[4]]
    assert [load.job_id for load in one] == requests[4:]


def test_a_flapping_pool_does_not_hide_a_lost_request(
    requests: list[UUID], recovery: Recovery
) -> None:
    for number in range(20):
        recovery.run(number * STALL_S / 2, pool_is_up=number % 2 == 0)
    recovery.run(10 * STALL_S)
    emitted = {chunk.job.job_id for chunk in recovery.chunks()}
    assert emitted == set(requests[:4])


def test_watched_requests_are_limited_and_others_count_as_backlog(
    requests: list[UUID], recovery: Recovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.recovery.stall_recovery.REQUESTS_MAX", 2)
    rate = len(requests[:4]) / STALL_S  # a backlog of four requests doubles the limit
    recovery.run(0, items_per_s=rate)
    recovery.run(1.9 * STALL_S, items_per_s=rate)
    assert not recovery.chunks()
    recovery.run(2 * STALL_S, items_per_s=rate)
    assert sorted(chunk.job.job_id for chunk in recovery.chunks()) == sorted(requests[:2])


def test_any_number_of_jobs_may_stall(engine: sa.Engine, job_id: UUID) -> None:
    stalled = [job_id, *(UUID(int=number) for number in range(70_000))]
    with engine.begin() as connection:
        query = sa.select(jobs.c.id).where(re_emit_due(stalled, STALL_S))
        assert list(connection.scalars(query)) == [job_id]


def test_a_database_outage_leaves_no_lease(
    job_id: UUID, recovery: Recovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery.run(0)
    monkeypatch.setattr("jobs.recovery.re_emit.missing_indexes", database_away)
    with pytest.raises(OperationalError):
        recovery.run(STALL_S)
    assert recovery.leases.count == 0


def during_search(monkeypatch: pytest.MonkeyPatch, happens: Callable[[range], None]) -> None:
    """Call `happens` after each query for missing indexes."""
    query = re_emit.missing_indexes

    def query_and_call(connection: sa.Connection, job: OpenJob, span: range) -> list[int]:
        found = query(connection, job, span)
        happens(span)
        return found

    monkeypatch.setattr(re_emit, "missing_indexes", query_and_call)


def test_a_large_job_is_searched_in_ranges_without_blocking_heartbeats(
    job_id: UUID, recovery: Recovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans: list[range] = []

    def heartbeat(span: range) -> None:
        spans.append(span)
        lease = recovery.leases.lease_of(job_id)
        assert lease is not None
        with recovery.engine.begin() as connection:
            connection.execute(sa.text("SET LOCAL lock_timeout = '500ms'"))
            leases.lock_lease(connection, lease)
            assert leases.extend(connection, [lease], 60) == {job_id}

    monkeypatch.setattr(re_emit, "RANGE_ITEMS", 110)
    during_search(monkeypatch, heartbeat)
    recovery.stall()
    assert spans == [range(110), range(110, 220), range(220, 300)]
    assert recovery.indexes() == sorted(set(range(CURSOR)) - DONE)


def test_a_lost_lease_emits_nothing(
    job_id: UUID, recovery: Recovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_over(_: range) -> None:
        execute(
            recovery.engine, sa.update(job_leases).values(holder="b", epoch=job_leases.c.epoch + 1)
        )

    during_search(monkeypatch, take_over)
    recovery.stall()
    assert recovery.indexes() == []
    with recovery.engine.begin() as connection:
        assert connection.scalar(sa.select(job_cursors.c.repaired_at)) is None


def test_waiting_retries_are_skipped_and_attempts_continue(
    job_id: UUID, recovery: Recovery
) -> None:
    waiting = {"job_id": job_id, "item_index": 3, "attempt": 2, "due_at": sa.func.now()}
    failed = {"job_id": job_id, "status_code": 500, "code": "broken"}
    with recovery.engine.begin() as connection:
        connection.execute(item_retries.insert().values(**waiting))
        for index, attempt in ((3, 1), (7, 1), (7, 2)):
            row = failed | {"item_index": index, "attempt": attempt}
            connection.execute(item_attempts.insert().values(**row))
    recovery.stall()
    assert recovery.indexes() == sorted(set(range(CURSOR)) - DONE - {3})
    attempts = {item.index: item.attempt for chunk in recovery.chunks() for item in chunk.items}
    assert attempts.pop(7) == 3
    assert set(attempts.values()) == {1}


def test_an_item_that_fails_during_the_search_keeps_its_attempt(
    job_id: UUID, recovery: Recovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The item is emitted as its first attempt, which readers count as a repeat."""

    def fail(_: range) -> None:
        row = {"job_id": job_id, "item_index": 7, "status_code": 500, "code": "broken"}
        execute(recovery.engine, item_attempts.insert().values(**row, attempt=3))

    during_search(monkeypatch, fail)
    recovery.stall()
    assert {item.attempt for chunk in recovery.chunks() for item in chunk.items} == {1}
