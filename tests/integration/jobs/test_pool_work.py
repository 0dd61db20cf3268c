"""Goal: the work of pools, tenants and jobs is that of their rows."""

from uuid import UUID

import pytest
import sqlalchemy as sa

from core.ids import new_uuid
from jobs.estimates.pool_work import (
    find_pool_sums,
    find_position,
    find_recent_jobs,
    find_tenant_jobs,
    tenant_works,
)
from jobs.tables.retries import item_retries
from tenancy.tables import tenants
from tests.integration.jobs.rows import add_job, add_tenant

NOW = sa.func.now()


def add_open(connection: sa.Connection, tenant_id: UUID, pool: str, **columns: object) -> UUID:
    given = {"state": "in_progress", "pool": pool, "total_count": 100} | columns
    return add_job(connection, tenant_id, **given)


@pytest.fixture
def pool() -> str:
    return f"pool-{new_uuid().hex}"


def test_sums_are_of_open_batches_by_tenant(engine: sa.Engine, pool: str) -> None:
    with engine.begin() as connection:
        mine, heavy = add_tenant(connection), add_tenant(connection)
        connection.execute(sa.update(tenants).where(tenants.c.id == heavy).values(weight=7))
        add_open(
            connection,
            mine,
            pool,
            cursor={"item_index": 40},
            counters={"succeeded": 9, "failed": 1},
        )
        add_open(connection, mine, pool)
        add_open(connection, heavy, pool, cursor={"item_index": 100}, counters={"succeeded": 100})
        add_open(connection, heavy, pool, total_count=20)
        for closed in (
            {"paused_at": NOW}, {"settled_at": NOW}, {"quarantined_until": NOW},
            {"close_reason": "cancelled"}, {"state": "completed"},
            {"not_before": NOW + sa.text("interval '1 hour'")},
        ):  # fmt: skip
            add_open(connection, mine, pool, **closed)
        found = find_pool_sums(connection)[pool]
    assert (found[mine].remaining, found[mine].outstanding, found[mine].weight) == (190, 30, 1)
    assert (found[heavy].remaining, found[heavy].outstanding, found[heavy].weight) == (20, 0, 7)


def test_recent_jobs_give_a_rate_and_a_size(engine: sa.Engine, pool: str) -> None:
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        for size in (10, 1000):
            add_open(connection, tenant_id, pool, total_count=size, state="completed")
        add_open(connection, tenant_id, pool, created_at=NOW - sa.text("interval '2 hours'"))
        recent = find_recent_jobs(connection)
        works = tenant_works(pool, find_pool_sums(connection), recent)
    jobs = recent[pool, tenant_id]
    assert jobs.per_s == pytest.approx(2 / 3600)
    assert jobs.mean_work(1e12) > 1000
    assert works[tenant_id].new_jobs == jobs
    assert works[tenant_id].remaining == 100  # the old one is open


def test_a_tenants_jobs_have_the_work_ahead_of_them(engine: sa.Engine, pool: str) -> None:
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        late = add_open(connection, tenant_id, pool, priority=4)
        first = add_open(connection, tenant_id, pool, total_count=30, cursor={"item_index": 10})
        other = add_open(connection, add_tenant(connection), pool)
        found = find_tenant_jobs(connection, tenant_id, 0.0)
    assert set(found.works) == {late, first}
    assert other not in found.ahead
    assert found.works[first].has_started
    assert found.ahead[first].to_end == 30
    assert (found.ahead[late].to_turn, found.ahead[late].to_end) == (30, 130)


@pytest.mark.parametrize("of_tenant", [None, "02:00-03:00 UTC"])
def test_outside_of_bulk_hours_only_emitted_items_count(
    engine: sa.Engine, pool: str, of_tenant: str | None
) -> None:
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        if of_tenant is not None:
            hours = {"bulk_hours": of_tenant}
            connection.execute(sa.update(tenants).where(tenants.c.id == tenant_id).values(hours))
        closed = add_open(connection, tenant_id, pool, bulk_hours="01:00-02:00 UTC")
        begun = add_open(
            connection, tenant_id, pool, bulk_hours="01:00-02:00 UTC", cursor={"item_index": 40}
        )
        always = add_open(connection, tenant_id, pool)
        add_open(connection, tenant_id, pool, not_before=NOW + sa.text("interval '1 hour'"))
        at_night = find_tenant_jobs(connection, tenant_id, 1.5 * 3600.0).works
        at_noon = find_tenant_jobs(connection, tenant_id, 12 * 3600.0).works
    assert at_noon[begun].remaining == 40
    assert closed not in at_noon
    if of_tenant is None:
        assert {job: work.remaining for job, work in at_night.items()} == {
            closed: 100, begun: 100, always: 100,
        }  # fmt: skip
        assert at_noon[always].remaining == 100
    else:
        assert at_night.keys() == at_noon.keys() == {begun}


def test_a_position_counts_scheduled_retries(engine: sa.Engine, pool: str) -> None:
    with engine.begin() as connection:
        job_id = add_open(
            connection, add_tenant(connection), pool, cursor={"item_index": 9, "copy_count": 2}
        )
        retry = {"job_id": job_id, "attempt": 2, "due_at": NOW}
        for index in (3, 4):
            connection.execute(item_retries.insert().values(**retry, item_index=index))
        found = find_position(connection, job_id)
        missing = find_position(connection, new_uuid())
    assert (found.emitted, found.copies, found.retries) == (9, 2, 2)
    assert missing.emitted == 0
