"""Goal: every item reaches the log in order, through crashes and lost leases."""

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from core.errors import LeaseLostError, MillraceError
from jobs.expansion.allowances import allowances
from jobs.expansion.cursors import ExpansionCursor, advance_cursor
from jobs.expansion.job_loads import OpenJob, open_jobs
from jobs.expansion.known_claims import KnownClaims
from jobs.leasing.leases import Lease
from jobs.tables.jobs import job_cursors
from storage.objects.errors import (
    ObjectNotFoundError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from storage.objects.object_store import ObjectBlocks
from tests.integration.jobs.expansion_process import ExpansionProcess
from tests.integration.jobs.log_reader import chunks_by_partition, indexes
from tests.integration.jobs.rows import (
    add_running_job,
    add_tenant,
    database_away,
    execute,
    fail_reads,
    job_row,
)
from tests.integration.jobs.stores import Stores
from tests.support.clock import ManualClock
from tests.support.recording_sender import SentRecords
from tests.support.until import until
from topics.clients.producer import RecordProducer
from topics.records.codec import decode
from topics.records.partitioner import shuffle_shard
from topics.records.records import Chunk


class Site:
    """Jobs on one database and log, and the intake processes that expand them."""

    def __init__(self, stores: Stores) -> None:
        self.engine, self.objects, self.producer, self.kafka = stores
        self.started: list[ExpansionProcess] = []

    def start(self, holder: str = "a") -> ExpansionProcess:
        self.started.append(ExpansionProcess(self.engine, self.objects, self.producer, holder))
        return self.started[-1]

    def start_claiming(self) -> ExpansionProcess:
        """Start a process that leases all jobs."""
        process = self.start()
        process.claim()
        return process

    def start_two(self) -> tuple[ExpansionProcess, ExpansionProcess]:
        return self.start("a"), self.start("b")

    def add_job(self, count: int = 100, *, tenant_id: UUID | None = None, **columns: Any) -> UUID:
        with self.engine.begin() as connection:
            tenant_id = tenant_id or add_tenant(connection)
            return add_running_job(connection, tenant_id, count, **columns)

    def cursor(self, job_id: UUID) -> int:
        query = sa.select(job_cursors.c.item_index).where(job_cursors.c.job_id == job_id)
        with self.engine.begin() as connection:
            index: int = connection.scalars(query).one()
        return index

    def indexes(self) -> list[int]:
        return indexes(self.kafka)


@pytest.fixture
def site(stores: Stores, store_lines: Callable[[str, int], None]) -> Iterator[Site]:
    store_lines("in", 1000)
    site = Site(stores)
    yield site
    for process in site.started:
        process.jobs.close()


def test_items_reach_the_log_in_index_order(site: Site) -> None:
    job_id = site.add_job(1000, traceparent="00-ab-cd-01")
    process = site.start_claiming()
    for allowed in (30, 270, 700):
        assert process.expander.run_once({job_id: allowed}) == allowed
    assert site.cursor(job_id) == 1000
    found = chunks_by_partition(site.kafka)
    with site.engine.begin() as connection:
        job = job_row(connection, job_id)
    assert set(found) == set(shuffle_shard("pool-small", job.tenant_id, 16))
    for chunks in found.values():
        on_partition = [item.index for chunk in chunks for item in chunk.items]
        assert on_partition == sorted(on_partition)
        for chunk in chunks:
            assert (chunk.job.job_id, chunk.job.traceparent) == (job_id, "00-ab-cd-01")
            assert chunk.job.deadline_s == job.expires_at.timestamp()
            assert all(item.custom_id == f"id-{item.index}" for item in chunk.items)
    assert site.indexes() == list(range(1000))
    process.jobs.release_finished({job_id})
    assert len(process.jobs.ids) == 0
    assert process.leases.lease_of(job_id) is None


def test_records_carry_the_weight_that_the_tenant_has_when_they_are_emitted(site: Site) -> None:
    job_id = site.add_job(300)
    execute(site.engine, "UPDATE tenants SET weight = 3")
    process = site.start_claiming()
    claims = KnownClaims(site.engine, clock := ManualClock())
    (ref,) = (leased.job.ref for leased in process.jobs.by_id.values())
    assert ref.weight == 3
    process.expander.tenant_claim = claims.claim

    def emit() -> None:
        assert process.expander.run_once({job_id: 60}) == 60

    emit()
    claims.learn(ref)
    emit()
    for weight, seconds in ((5, 0), (7, 0), (7, 60)):
        execute(site.engine, f"UPDATE tenants SET weight = {weight}")
        clock.advance(seconds)
        claims.refresh()
        emit()
    found = [chunk for chunks in chunks_by_partition(site.kafka).values() for chunk in chunks]
    by_first = {chunk.items[0].index: chunk.job.weight for chunk in found}
    assert by_first == {0: 1, 60: 3, 120: 5, 180: 5, 240: 7}


def test_a_job_on_an_unavailable_partition_waits_and_others_go_on(site: Site) -> None:
    log = SentRecords(acknowledges=True)
    process = ExpansionProcess(site.engine, site.objects, cast(RecordProducer, log))
    site.started.append(process)
    with site.engine.begin() as connection:
        tenant = add_tenant(connection)
    dead = shuffle_shard("pool-small", tenant, 16)[0]
    pools = (f"p-{n}" for n in itertools.count())
    elsewhere = next(p for p in pools if dead not in shuffle_shard(p, tenant, 16))
    on_dead, beside = site.add_job(1000, tenant_id=tenant), site.add_job(300, tenant_id=tenant)
    other = site.add_job(300, tenant_id=tenant, pool=elsewhere)
    process.claim()
    log.unavailable = {("requests.bulk", dead)}
    process.expander.run_once({on_dead: 300, other: 100})
    assert (site.cursor(on_dead), site.cursor(other)) == (0, 100)
    sent = len(log.records)
    process.expander.run_once({on_dead: 200, beside: 200, other: 200})
    assert [site.cursor(job_id) for job_id in (on_dead, beside, other)] == [0, 0, 300]
    assert len(log.records) == sent + 2  # of `other`

    log.restore()
    process.expander.run_once({on_dead: 700})
    assert site.cursor(on_dead) == 1000
    chunks = [decode(Chunk, record.value, record.headers) for record in log.records]
    of_dead = [item.index for c in chunks if c.job.job_id == on_dead for item in c.items]
    assert of_dead == list(range(1000))


def test_records_that_waited_through_a_pause_move_no_cursor(site: Site) -> None:
    log = SentRecords(acknowledges=True)
    process = ExpansionProcess(site.engine, site.objects, cast(RecordProducer, log))
    site.started.append(process)
    job_id = site.add_job(300)
    process.claim()
    job = process.jobs.by_id[job_id].job.ref
    log.unavailable = {("requests.bulk", n) for n in shuffle_shard(job.pool, job.tenant_id, 16)}
    process.expander.run_once({job_id: 100})
    execute(site.engine, "UPDATE jobs SET control_version = 3")
    execute(site.engine, "UPDATE job_cursors SET fence = 3")
    process.lease_jobs()
    log.restore()
    process.expander.run_once({})
    assert site.cursor(job_id) == 0


def test_a_crash_before_the_cursor_moves_emits_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = site.add_job()
    process = site.start_claiming()
    with monkeypatch.context() as patch:
        patch.setattr("jobs.expansion.expander.advance_cursor", database_away)
        with pytest.raises(OperationalError):
            process.expander.run_once({job_id: 60})
    assert site.cursor(job_id) == 0
    process.expander.run_once({job_id: 60})
    assert site.indexes() == sorted([*range(60), *range(60)])


def test_the_next_holder_continues_at_the_cursor_which_no_other_moves(site: Site) -> None:
    job_id = site.add_job(100)
    zombie, successor = site.start_two()
    zombie.claim()
    zombie.expander.run_once({job_id: 30})
    successor.claim()
    assert len(successor.jobs.ids) == 0
    zombie.die()
    successor.claim()
    successor.expander.run_once({job_id: 40})
    zombie.expander.run_once({job_id: 10})
    assert site.cursor(job_id) == 70
    assert len(zombie.jobs.ids) == 0
    late = Lease(job_id, "intake", "a", 1)
    with site.engine.begin() as connection, pytest.raises(LeaseLostError):
        advance_cursor(connection, late, ExpansionCursor(0, 0, 70), ExpansionCursor(9, 9, 90))
    successor.expander.run_once({job_id: 30})
    assert site.cursor(job_id) == 100
    assert site.indexes() == sorted([*range(100), *range(30, 40)])


def test_a_heartbeat_drops_a_lost_lease(site: Site) -> None:
    job_id = site.add_job()
    process = site.start_claiming()
    process.leases.extend_all()
    assert process.leases.lease_of(job_id) is not None
    process.die()
    process.leases.extend_all()
    assert process.leases.lease_of(job_id) is None
    process.jobs.release_finished({job_id})
    assert len(process.jobs.ids) == 0


@pytest.mark.parametrize("failure", [ObjectNotFoundError, ObjectStoreRefusedError])
def test_only_an_unreadable_job_is_suspended(
    site: Site, monkeypatch: pytest.MonkeyPatch, failure: type[MillraceError]
) -> None:
    good, bad = site.add_job(), site.add_job(input_key="bad")
    process = site.start()
    fail_reads(monkeypatch, site.objects, "bad", failure)
    process.claim()
    assert process.expander.run_once({bad: 100, good: 100}) == 100
    assert (site.cursor(good), site.cursor(bad)) == (100, 0)
    process.claim()  # not before its lease has expired
    assert process.jobs.ids == {good}
    assert process.leases.lease_of(bad) is None


def test_a_throttled_job_keeps_a_slot_and_others_go_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, throttled = site.add_job(), site.add_job(input_key="in2")
    gate, read = threading.Event(), site.objects.read
    process = site.start_claiming()

    def slow(key: str, **given: Any) -> ObjectBlocks:
        if key == "in2":
            assert gate.wait(30)
            key = "in"
        return read(key, **given)

    monkeypatch.setattr(site.objects, "read", slow)
    until(lambda: process.expander.run_once({throttled: 10, good: 10}) == 10)  # its file is open
    emitted = [process.expander.run_once({throttled: 10, good: 10}) for _ in range(2)]
    assert emitted == [10, 10]
    assert (site.cursor(good), site.cursor(throttled)) == (30, 0)
    assert process.expander.slots.busy_count == 1

    gate.set()
    until(lambda: process.expander.run_once({throttled: 10}) == 10)
    assert site.cursor(throttled) == 10


def test_a_throttled_job_backs_off_longer_each_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = site.add_job()
    process = site.start()
    fail_reads(monkeypatch, site.objects, "in", ObjectStoreUnavailableError)
    waits = []
    for _ in range(3):
        process.claim()
        process.expander.run_once({job_id: 10})
        with site.engine.begin() as connection:
            left = "SELECT extract(epoch FROM expires_at - now())::int FROM job_leases"
            waits.append(connection.scalar(sa.text(left)))
        process.die()
    assert waits == pytest.approx([10, 20, 40], abs=3)
    monkeypatch.undo()
    process.claim()
    assert process.expander.run_once({job_id: 10}) == 10


def test_a_suspended_job_has_no_share_of_the_window(site: Site) -> None:
    with site.engine.begin() as connection:
        tenant_id = add_tenant(connection)
    bad = site.add_job(tenant_id=tenant_id, input_key="gone")
    good = site.add_job(tenant_id=tenant_id)
    process, other = site.start_two()
    process.claim()
    process.expander.run_once({bad: 10, good: 10})
    assert process.lease_states() == {bad: True, good: False}
    with process.cache.current() as cached:
        leased = cached.leased(process.jobs.ids)
        windows = {cached.by_id[bad].tenant_pool: 50}
        assert allowances(leased, cached.sums.by_tenant_pool, windows) == {good: 40}
    other.jobs.acquire([bad], 10)
    assert other.jobs.ids == frozenset()  # not before its lease has expired
    process.die()
    assert bad not in other.lease_states()
    other.jobs.acquire([bad], 10)
    assert other.jobs.ids == {bad}
    assert other.lease_states()[bad] is False


def test_a_closed_job_is_released(site: Site) -> None:
    job_id = site.add_job()
    process = site.start_claiming()
    execute(site.engine, "UPDATE jobs SET close_reason = 'expired'")
    assert process.loads() == []
    process.jobs.release_finished(set())
    assert len(process.jobs.ids) == 0
    process.claim()
    assert process.leases.lease_of(job_id) is None


def test_leases_expire_if_their_jobs_cannot_be_loaded(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_job(10)
    process = site.start()
    with monkeypatch.context() as broken:
        broken.setattr("jobs.expansion.leased_jobs.open_jobs", database_away)
        with pytest.raises(OperationalError):
            process.claim()
    assert process.leases.count == 0
    execute(site.engine, "UPDATE job_leases SET expires_at = now()")
    process.claim()
    assert len(process.jobs.ids) == 1


def test_claimed_jobs_are_kept_if_releasing_a_paused_one_fails(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = (site.add_job(10) for _ in range(3))
    process = site.start()

    def all_but_the_first(*arguments: Any) -> dict[UUID, OpenJob]:
        return {job_id: job for job_id, job in open_jobs(*arguments).items() if job_id != first}

    monkeypatch.setattr("jobs.expansion.leased_jobs.open_jobs", all_but_the_first)
    monkeypatch.setattr("jobs.leasing.leases.release", database_away)
    with pytest.raises(OperationalError):
        process.jobs.acquire([first, *others], 10)
    assert process.jobs.ids == set(others)
    assert process.leases.count == len(others)
    monkeypatch.undo()


def test_a_slot_goes_to_the_better_ranked_job(site: Site) -> None:
    first, second, third = (site.add_job() for _ in range(3))
    process, other = site.start_two()
    process.jobs.acquire([first, second], 2)
    process.expander.run_once({first: 50})
    other.jobs.acquire([third], 2)
    process.jobs.acquire([third, first, second], 2)
    assert process.jobs.ids == {first, second}  # the other process was faster: none is released
    other.jobs.release_finished(())
    process.jobs.acquire([third, second], 2)
    assert process.jobs.ids == {second, third}
    other.claim()
    assert other.jobs.ids == {first}
    other.expander.run_once({first: 100})
    process.expander.run_once({second: 100, third: 100})
    assert site.indexes() == sorted([*range(100)] * 3)


def test_no_job_fills_every_round(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.expansion.expander.ROUND_ITEMS_MAX", 100)
    job_ids = [site.add_job(1000) for _ in range(3)]
    process = site.start_claiming()
    for _ in range(6):
        process.expander.run_once(dict.fromkeys(job_ids, 500))
    assert [site.cursor(job_id) for job_id in job_ids] == [200, 200, 200]
