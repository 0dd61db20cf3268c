"""Goal: after a restore, unfinished jobs are newer than anything the log may hold of them."""

from uuid import UUID

import sqlalchemy as sa

from core.states import CloseReason
from jobs.leases import claim
from jobs.outbox_tables import outbox
from jobs.progress_tables import job_leases
from jobs.renewing import JUMP, renew
from jobs.tables import jobs
from tests.integration.jobs.rows import add_job, add_tenant
from topics.catalogue import CONTROL
from topics.codec import decode
from topics.records import JobControl


def said(connection: sa.Connection, job_id: UUID) -> list[JobControl | None]:
    """What the control topic will say of a job; None takes back what was said."""
    its = sa.select(outbox.c.value, outbox.c.headers).where(
        outbox.c.topic == CONTROL.name, outbox.c.key == job_id.bytes
    )
    return [
        None if value is None else decode(JobControl, value, [(k, v.encode()) for k, v in headers])
        for value, headers in connection.execute(its.order_by(outbox.c.id))
    ]


def test_unfinished_jobs_are_renewed_and_others_left_alone(database_url: str) -> None:
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        running = add_job(connection, tenant_id, state="in_progress", control_version=3)
        closed = add_job(
            connection, tenant_id, state="cancelling", close_reason="cancelled", total_count=1
        )
        add_job(connection, tenant_id, state="completed")
        (lease,) = claim(
            connection,
            role="finaliser",
            holder="one",
            ttl_s=600,
            limit=1,
            where=jobs.c.id == running,
        )
    with engine.begin() as connection:
        done = {row.id for row in renew(connection, set())}
        assert done == {running, closed}
        assert renew(connection, done) == []

        taken_back, state = said(connection, running)
        assert taken_back is None
        assert state is not None
        assert (state.version, state.paused, state.closed) == (3 + JUMP, False, None)
        taken_back, state = said(connection, closed)
        assert taken_back is None
        assert state is not None
        assert state.closed is CloseReason.CANCELLED
        leases = connection.execute(sa.select(job_leases)).all()
        assert {(row.job_id, row.role, row.epoch) for row in leases} == {
            (running, "finaliser", lease.epoch + JUMP),
            (closed, "finaliser", JUMP),
        }
    with engine.begin() as connection:
        (again,) = claim(
            connection,
            role="finaliser",
            holder="two",
            ttl_s=60,
            limit=1,
            where=jobs.c.id == running,
        )
        assert again.epoch == lease.epoch + JUMP + 1
