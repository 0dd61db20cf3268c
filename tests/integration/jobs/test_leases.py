"""Goal: one holder per job and role, and no write by a holder that lost its lease."""

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.errors import LeaseLostError
from core.metrics import WRITES_REFUSED
from jobs.leasing import leases
from jobs.leasing.leases import Lease
from jobs.tables.jobs import job_leases, jobs
from tests.integration.jobs.rows import add_job, add_tenant

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
