"""Goal: an expired job is closed once, with its close record and control record."""

from uuid import UUID

import sqlalchemy as sa

from core.states import CloseReason
from jobs.recovery.expiry import (
    close_expired,
    end_without_verdict,
    republish_closes,
    sweep_expired_jobs,
)
from jobs.store.days import job_day
from jobs.tables.jobs import job_counters
from storage.postgres.outbox import outbox
from tests.integration.jobs.rows import add_job, add_tenant, job_row, outbox_records
from topics.records.catalogue import CONTROL, EVENTS, RESULTS
from topics.records.records import JobClose, JobControl, JobEvent

PAST = sa.text("now() - interval '1 s'")


def running_job(connection: sa.Connection, tenant_id: UUID, **columns: object) -> UUID:
    return add_job(connection, tenant_id, state="in_progress", total_count=5, **columns)


def test_the_sweep_closes_only_due_jobs(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        due = running_job(connection, tenant_id, expires_at=PAST)
        others = [
            running_job(connection, tenant_id),
            running_job(connection, tenant_id, expires_at=PAST, settled_at=PAST),
            running_job(connection, tenant_id, expires_at=PAST, close_reason="expired"),
            add_job(connection, tenant_id, expires_at=PAST),
        ]
        before = [job_row(connection, job_id) for job_id in others]
    for _ in range(2):
        sweep_expired_jobs(engine, stall_limit_s=3600)
    with engine.begin() as connection:
        job = job_row(connection, due)
        closes = outbox_records(connection, RESULTS, JobClose)
        controls = outbox_records(connection, CONTROL, JobControl)
        assert [job_row(connection, job_id) for job_id in others] == before
    assert (job.state, job.close_reason) == ("in_progress", "expired")
    assert closes == [JobClose(due, job_day(job.created_at), CloseReason.EXPIRED)]
    assert [control.closed for control in controls] == [CloseReason.EXPIRED]


def test_jobs_without_a_verdict_end_after_their_window_or_cancel(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        cancelling = {"state": "cancelling", "close_reason": "cancelled"}
        expired = add_job(connection, tenant_id, expires_at=PAST)
        cancelled = add_job(connection, tenant_id, **cancelling, cancelling_at=PAST)
        others = [
            add_job(connection, tenant_id),
            add_job(connection, tenant_id, **cancelling, cancelling_at=sa.func.now()),
            add_job(connection, tenant_id, **cancelling, cancelling_at=PAST, total_count=5),
            running_job(connection, tenant_id, expires_at=PAST),
        ]
        before = [job_row(connection, job_id) for job_id in others]
        assert end_without_verdict(connection, 3600) == 0
        assert end_without_verdict(connection, 0.5) == 2
        assert end_without_verdict(connection, 0.5) == 0
        assert [job_row(connection, job_id) for job_id in others] == before
        failed, ended = job_row(connection, expired), job_row(connection, cancelled)
        events = outbox_records(connection, EVENTS, JobEvent)
    assert (failed.state, failed.errors[0]["code"]) == ("failed", "batch_expired")
    assert (ended.state, ended.total_count) == ("cancelled", 0)
    assert {(event.job_id, event.state) for event in events} == {
        (expired, "failed"),
        (cancelled, "cancelled"),
    }


def test_a_lost_close_is_republished(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        job_id = running_job(
            connection,
            add_tenant(connection),
            created_at=PAST,
            expires_at=PAST,
            close_reason="expired",
        )
        connection.execute(
            sa.update(job_counters).where(job_counters.c.job_id == job_id).values(updated_at=PAST)
        )
        assert republish_closes(connection, 3600) == 0
        assert republish_closes(connection, 0.5) == 1
    with engine.begin() as connection:
        topics = connection.scalars(sa.select(outbox.c.topic).order_by(outbox.c.id)).all()
        assert topics == ["results", "control"]
        assert republish_closes(connection, 0.5) == 0  # not again before the limit has passed


def test_a_sweep_skips_locked_jobs(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        job_id = running_job(connection, add_tenant(connection), expires_at=PAST)
    with engine.begin() as holder, engine.begin() as other:
        assert close_expired(holder) == 1
        assert close_expired(other) == 0
    with engine.begin() as connection:
        assert job_row(connection, job_id).close_reason == "expired"
        assert close_expired(connection) == 0
