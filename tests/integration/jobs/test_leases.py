"""Goal: one holder per job and role, every tenant has its turn, no write by an old holder."""

import re
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.errors import LeaseLostError
from core.runtime.metrics import WRITES_REFUSED
from jobs.leasing import leases
from jobs.leasing.active_leases import ActiveLeases
from jobs.leasing.lease_queue import PLAN_AGE_S_MAX, LeaseQueue, fair_order_query
from jobs.leasing.leases import Lease, claimable
from jobs.tables.jobs import job_leases, jobs
from jobs.validation.verdicts import VALIDATION_DUE
from results.finaliser.finalisation import READY
from tests.integration.jobs.plans import plan
from tests.integration.jobs.rows import add_job, add_tenant
from tests.support.clock import ManualClock

EVERY = jobs.c.state == "validating"


def claim(
    engine: sa.Engine, holder: str, *, role: str = "intake", ttl_s: float = 60, limit: int = 10
) -> list[Lease]:
    with engine.begin() as connection:
        return leases.claim(
            connection, role=role, holder=holder, ttl_s=ttl_s, limit=limit, where=EVERY
        )


def some_jobs(engine: sa.Engine, count: int) -> list[UUID]:
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        return [
            add_job(connection, tenant_id, created_at=sa.text(f"now() + interval '{n} s'"))
            for n in range(count)
        ]


def test_the_oldest_jobs_are_claimed_once_per_role(engine: sa.Engine) -> None:
    job_ids = some_jobs(engine, 3)
    assert claim(engine, "a", limit=2) == [
        Lease(job_id, "intake", "a", 1) for job_id in job_ids[:2]
    ]
    assert [lease.job_id for lease in claim(engine, "b")] == job_ids[2:]
    assert claim(engine, "b") == []
    assert len(claim(engine, "b", role="finaliser")) == 3


def test_a_heartbeat_skips_a_locked_lease(engine: sa.Engine) -> None:
    some_jobs(engine, 3)
    held = claim(engine, "a", ttl_s=30)
    with engine.begin() as busy, engine.begin() as heartbeat:
        leases.lock_lease(busy, held[1])
        heartbeat.execute(sa.text("SET LOCAL lock_timeout = '100ms'"))
        assert leases.extend(heartbeat, held, 600) == {lease.job_id for lease in held}
    left_s = sa.extract("epoch", job_leases.c.expires_at - sa.func.now())
    with engine.begin() as connection:
        query = sa.select(job_leases.c.job_id).where(left_s > 60)
        extended = set(connection.scalars(query))
    assert extended == {held[0].job_id, held[2].job_id}


def test_an_expired_lease_goes_to_the_next_holder_with_a_higher_epoch(engine: sa.Engine) -> None:
    some_jobs(engine, 1)
    (old,) = claim(engine, "a", ttl_s=-1)
    (new,) = claim(engine, "b")
    assert (new.holder, new.epoch) == ("b", 2)
    with engine.begin() as connection:
        assert leases.extend(connection, [old], 60) == set()
        assert leases.extend(connection, [new], 60) == {new.job_id}
        leases.release(connection, old)  # no longer its own
        leases.lock_lease(connection, new)
        refused = WRITES_REFUSED.labels("intake")
        before = refused._value.get()
        with pytest.raises(LeaseLostError):
            leases.lock_lease(connection, old)
        assert refused._value.get() == before + 1
    assert claim(engine, "c") == []
    with engine.begin() as connection:
        leases.release(connection, new)
        assert leases.extend(connection, [new], 60) == set()
    assert claim(engine, "c")[0].epoch == 3  # at once


def test_concurrent_claims_never_share_a_job(engine: sa.Engine) -> None:
    job_ids = some_jobs(engine, 40)
    taken: list[Lease] = []

    def claim_all(holder: str) -> None:
        idle = 0
        while idle < 3:
            got = claim(engine, holder, limit=3)
            taken.extend(got)
            idle = 0 if got else idle + 1

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(claim_all, "abcdef"))
    assert sorted(lease.job_id for lease in taken) == sorted(job_ids)
    assert {lease.epoch for lease in taken} == {1}


def test_a_faster_claim_keeps_its_lease(engine: sa.Engine) -> None:
    """The slower claim selects the job before the faster one commits."""
    some_jobs(engine, 1)
    with engine.begin() as slow:
        slow.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        slow.execute(sa.select(jobs.c.id))  # takes the snapshot without any lease
        (fast,) = claim(engine, "fast")
        with pytest.raises(sa.exc.OperationalError):  # serialisation failure
            leases.claim(slow, role="intake", holder="slow", ttl_s=60, limit=1, where=EVERY)
    with engine.begin() as connection:
        leases.lock_lease(connection, fast)


def test_a_locked_lease_blocks_the_next_holder(engine: sa.Engine) -> None:
    some_jobs(engine, 1)
    (lease,) = claim(engine, "a", ttl_s=-1)
    with engine.begin() as connection:
        leases.lock_lease(connection, lease)
        with engine.begin() as other:
            other.execute(sa.text("SET LOCAL lock_timeout = '100ms'"))
            with pytest.raises(sa.exc.OperationalError):
                leases.claim(other, role="intake", holder="b", ttl_s=60, limit=1, where=EVERY)
        connection.execute(sa.update(job_leases).values(holder="a"))  # still ours


CROWD = 20_000
READS_ALL_JOBS = re.compile(r"'Seq Scan'[^{]*'jobs'")

FILL = sa.text(
    """
    WITH owner AS (INSERT INTO tenants (id, name) VALUES (gen_random_uuid(), :name) RETURNING id),
    file AS (
        INSERT INTO files (id, tenant_id, purpose, filename, object_key, size_bytes, sha256)
        SELECT gen_random_uuid(), id, 'batch', 'in', :name, 0, '' FROM owner RETURNING id, tenant_id
    ), added AS (
        INSERT INTO jobs (id, tenant_id, state, endpoint, input_file_id, input_key, input_bytes,
            completion_window, created_at, expires_at)
        SELECT gen_random_uuid(), file.tenant_id, :state, '/v1/embeddings', file.id, 'in', 1,
            '24h', now() + n * interval '1 ms', now() + interval '1 day'
        FROM file, generate_series(1, :count) AS n
        RETURNING id, tenant_id
    ), cursors AS (
        INSERT INTO job_cursors (job_id) SELECT id FROM added
    ), counters AS (
        INSERT INTO job_counters (job_id) SELECT id FROM added
    )
    SELECT tenant_id FROM file
    """
)


def fill(engine: sa.Engine, name: str, count: int, state: str = "validating") -> UUID:
    """Add a tenant with `count` jobs."""
    with engine.begin() as connection:
        tenant_id: UUID = connection.scalar(FILL, {"name": name, "count": count, "state": state})
    return tenant_id


def vacuum_jobs(engine: sa.Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("VACUUM ANALYZE jobs"))


def queue_of(engine: sa.Engine, clock: ManualClock, holder: str = "a") -> LeaseQueue:
    leases = ActiveLeases(engine, role="intake", holder=holder, ttl_s=60)
    return LeaseQueue(engine, leases, VALIDATION_DUE, clock)


def tenants_of(engine: sa.Engine, claimed: list[Lease]) -> list[UUID]:
    with engine.begin() as connection:
        query = sa.select(jobs.c.id, jobs.c.tenant_id)
        owner = {row.id: row.tenant_id for row in connection.execute(query)}
    return [owner[lease.job_id] for lease in claimed]


def test_tenants_are_served_round_robin(engine: sa.Engine) -> None:
    crowds = {fill(engine, name, 500) for name in ("one", "two")}
    late = fill(engine, "late", 3)
    queue = queue_of(engine, ManualClock())
    served = tenants_of(engine, [lease for _ in range(9) for lease in queue.claim(1)])
    assert all(set(served[n : n + 3]) == {late, *crowds} for n in (0, 3, 6))
    assert set(tenants_of(engine, queue.claim(4))) == crowds  # the late tenant has no more jobs


def test_the_jobs_of_one_tenant_are_served_oldest_first(engine: sa.Engine) -> None:
    fill(engine, "one", 70)
    with engine.begin() as connection:
        by_age = list(connection.scalars(sa.select(jobs.c.id).order_by(jobs.c.created_at)))
    queue = queue_of(engine, ManualClock())
    claimed = [lease.job_id for _ in range(70) for lease in queue.claim(1)]
    assert claimed == by_age
    assert queue.claim(1) == []


def test_a_new_tenant_enters_the_next_plan(engine: sa.Engine) -> None:
    fill(engine, "one", 500)
    clock = ManualClock()
    queue = queue_of(engine, clock)
    queue.claim(2)
    late = fill(engine, "late", 1)
    clock.now_s += PLAN_AGE_S_MAX
    assert late in tenants_of(engine, queue.claim(2))


def test_more_tenants_than_fit_a_plan_are_all_served(engine: sa.Engine) -> None:
    everyone = [fill(engine, f"tenant {n}", 3) for n in range(100)]
    queue = queue_of(engine, ManualClock())
    served = tenants_of(engine, [lease for _ in range(50) for lease in queue.claim(2)])
    assert sorted(served) == sorted(everyone)


def test_an_excluded_tenant_keeps_its_place(engine: sa.Engine) -> None:
    one, two = fill(engine, "one", 5), fill(engine, "two", 2)
    queue = queue_of(engine, ManualClock())
    assert tenants_of(engine, queue.claim(9, excluding_tenants={one})) == [two, two]
    assert (queue.served, queue.has_skipped) == (two, True)
    assert queue.claim(1, excluding_tenants={one}) == []
    assert queue.has_skipped
    assert tenants_of(engine, queue.claim(9, excluding_tenants={two})) == [one] * 5
    assert (queue.served, queue.has_skipped) == (one, False)
    assert queue.claim(1) == []
    assert not queue.has_skipped


def test_processes_share_the_jobs_and_skip_a_locked_one(engine: sa.Engine) -> None:
    fill(engine, "one", 100)
    clock = ManualClock()
    queues = [queue_of(engine, clock, name) for name in "ab"]
    with engine.begin() as connection:
        oldest = sa.select(jobs.c.id).order_by(jobs.c.created_at).limit(1)
        locked = connection.scalars(oldest.with_for_update()).one()
        taken = [lease for _ in range(30) for queue in queues for lease in queue.claim(2)]
    assert len({lease.job_id for lease in taken}) == len(taken) == 99
    assert locked not in {lease.job_id for lease in taken}
    assert [lease.job_id for lease in queues[0].claim(2)] == [locked]


def test_leases_claimed_before_a_failure_expire(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has the second job, so a second claim follows, which fails."""
    fill(engine, "one", 3)
    leases = ActiveLeases(engine, role="intake", holder="a", ttl_s=60)
    queue = LeaseQueue(engine, leases, VALIDATION_DUE, ManualClock())
    claim, claims = leases.claim, 0

    def failing(_: ActiveLeases, where: sa.ColumnElement[bool], limit: int) -> list[Lease]:
        nonlocal claims
        claims += 1
        if claims == 2:
            raise sa.exc.OperationalError("the database is away", {}, Exception())
        return claim(where, 1)

    monkeypatch.setattr(ActiveLeases, "claim", failing)
    with pytest.raises(sa.exc.OperationalError):
        queue.claim(2)
    assert (claims, leases.count) == (2, 0)


@pytest.mark.parametrize("where", [VALIDATION_DUE, READY])
def test_a_plan_reads_only_unfinished_jobs(
    engine: sa.Engine, where: sa.ColumnElement[bool]
) -> None:
    fill(engine, "past", CROWD, "completed")
    fill(engine, "present", CROWD, "validating")
    with engine.begin() as connection:
        add_job(connection, add_tenant(connection))
    vacuum_jobs(engine)
    with engine.begin() as connection:
        text, _ = plan(connection, fair_order_query("intake", where, after=UUID(int=1)))
    assert not READS_ALL_JOBS.search(text)


OPEN_REQUESTS = sa.text(
    """
    INSERT INTO jobs (id, tenant_id, kind, state, endpoint, input_key, input_bytes, total_count,
        completion_window, created_at, expires_at)
    SELECT gen_random_uuid(), tenants.id, 'request', 'in_progress', '/v1/embeddings', 'in', 1, 1,
        '24h', now(), now() + interval '1 day'
    FROM tenants, generate_series(1, :count)
    """
)


def test_a_validation_plan_reads_no_single_requests(engine: sa.Engine) -> None:
    fill(engine, "one", 50)
    with engine.begin() as connection:
        connection.execute(OPEN_REQUESTS, {"count": 5000})
    vacuum_jobs(engine)
    with engine.begin() as connection:
        _, rows = plan(connection, fair_order_query("intake", VALIDATION_DUE, after=UUID(int=1)))
    assert rows <= 100


def test_a_claim_reads_only_its_jobs(engine: sa.Engine) -> None:
    fill(engine, "one", 2000)
    vacuum_jobs(engine)
    with engine.begin() as connection:
        job_ids = list(connection.scalars(sa.select(jobs.c.id).limit(3)))
        where = sa.and_(VALIDATION_DUE, jobs.c.id.in_(job_ids))
        _, rows = plan(connection, claimable("intake", 3, where))
    assert rows <= 10
