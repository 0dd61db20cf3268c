"""Goal: after a restore, unfinished jobs are newer than any of their records on the log."""

import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.states import CloseReason
from jobs.recovery import restore_fencing
from jobs.recovery.restore_fencing import VERSION_JUMP, count_unvalidated_jobs, fence_restored_jobs
from jobs.tables.files import job_inputs
from jobs.tables.jobs import job_leases, jobs
from storage.postgres.outbox import outbox
from tests.integration.jobs.rows import add_file, add_job, add_tenant, claim_lease
from topics.records.catalogue import CONTROL
from topics.records.codec import decode
from topics.records.records import JobControl


def control_records(connection: sa.Connection, job_id: UUID) -> list[JobControl | None]:
    """Return the control records of a job in the outbox; None is a tombstone."""
    query = sa.select(outbox.c.value, outbox.c.headers).where(
        outbox.c.topic == CONTROL.name, outbox.c.key == job_id.bytes
    )
    return [
        None if value is None else decode(JobControl, value, [(k, v.encode()) for k, v in headers])
        for value, headers in connection.execute(query.order_by(outbox.c.id))
    ]


def fence_all(connection: sa.Connection) -> list[sa.Row[Any]]:
    found: list[sa.Row[Any]] = []
    while rows := fence_restored_jobs(connection, found[-1] if found else None):
        found += rows
    return found


def test_jobs_with_an_unvalidated_file_are_counted(engine: sa.Engine) -> None:
    closed = {"state": "cancelling", "close_reason": "cancelled"}
    open_ = {"state": "in_progress"}
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        add_job(connection, tenant_id, state="validating")
        add_job(connection, tenant_id, **closed)
        add_job(connection, tenant_id, total_count=1, **open_)
        add_job(connection, tenant_id, state="failed")
        for state, columns in (("validating", open_), ("refused", open_), ("dropped", closed)):
            job_id = add_job(connection, tenant_id, total_count=1, **columns)
            file = add_file(connection, tenant_id)
            row = {"job_id": job_id, "number": 1, "file_id": file.id, "state": state}
            values = row | {"object_key": file.object_key, "size_bytes": 1}
            connection.execute(job_inputs.insert().values(values))
        assert count_unvalidated_jobs(connection) == 3
        assert connection.scalar(sa.text(runbook_query())) == 3


def runbook_query() -> str:
    """Return the query in the runbook of a restore."""
    text = (Path(__file__).parents[3] / "docs/operations.md").read_text()
    queries = re.findall(r"`(SELECT count\(\*\) FROM jobs .*?)`", text, re.DOTALL)
    (query,) = (query for query in queries if "job_inputs" in query)
    return " ".join(query.split())


def test_only_unfinished_jobs_are_fenced(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        running = add_job(connection, tenant_id, state="in_progress", control_version=3)
        closed = add_job(
            connection, tenant_id, state="cancelling", close_reason="cancelled", total_count=1
        )
        add_job(connection, tenant_id, state="completed")
        lease = claim_lease(connection, "finaliser", jobs.c.id == running)
    with engine.begin() as connection:
        assert {row.id for row in fence_all(connection)} == {running, closed}

        tombstone, state = control_records(connection, running)
        assert tombstone is None
        assert state is not None
        assert (state.version, state.paused, state.closed) == (3 + VERSION_JUMP, False, None)
        tombstone, state = control_records(connection, closed)
        assert tombstone is None
        assert state is not None
        assert state.closed is CloseReason.CANCELLED
        leases = connection.execute(sa.select(job_leases)).all()
        assert {(row.job_id, row.role, row.epoch) for row in leases} == {
            (running, "finaliser", lease.epoch + VERSION_JUMP),
            (closed, "finaliser", VERSION_JUMP),
        }
    with engine.begin() as connection:
        again = claim_lease(connection, "finaliser", jobs.c.id == running, holder="b")
        assert again.epoch == lease.epoch + VERSION_JUMP + 1


def test_statements_do_not_grow_with_the_fenced_jobs(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_fencing, "SLICE_JOBS", 2)
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        expected = {add_job(connection, tenant_id, state="in_progress") for _ in range(7)}
    sizes: list[int] = []

    def note(*given: Any) -> None:
        if "ORDER BY jobs.created_at" in given[2]:
            sizes.append(len(given[3]))

    sa.event.listen(engine, "before_cursor_execute", note)
    with engine.begin() as connection:
        fenced = [row.id for row in fence_all(connection)]
    assert sorted(fenced) == sorted(expected)  # with equal creation times
    assert len(sizes) == 5
    assert len(set(sizes[1:])) == 1
