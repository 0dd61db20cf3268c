"""Goal: after a restore, bills of calls are restored from the log, each once."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest
import sqlalchemy as sa

from core.ids import new_uuid
from results.rebuilding.database_restore import recover
from results.tables import billed_calls
from tenancy.audit_reading import read_entries
from tenancy.installation_log import INSTALLATION
from tenancy.response_cache import NO_JOB
from tenancy.tables import usage_ledger
from tests.integration.results.job_log import JobLog
from tests.integration.results.outcomes import add_running_job, execute, job_ref, outcome, scalars
from topics.records.records import CallRef, Outcomes

HIT = "the model of an answer out of the cache"


def write_report(log: JobLog) -> UUID:
    call = new_uuid()
    job = msgspec.structs.replace(job_ref(call), call=CallRef("c", 0))
    log.write(call, Outcomes(job, [outcome(0, body=b"")]))
    return call


def billed(engine: sa.Engine) -> tuple[set[UUID], int]:
    """The billed calls, and how many the ledger has."""
    ours = sa.select(sa.func.sum(usage_ledger.c.item_count)).where(usage_ledger.c.model != HIT)
    return {*scalars(engine, sa.select(billed_calls.c.request_id))}, scalars(engine, ours)[0] or 0


def add_later_hit(engine: sa.Engine) -> None:
    """Add a cache hit to the ledger, dated long after all reports."""
    names = [column.name for column in usage_ledger.c]
    row: dict[str, object] = {name: 0 for name in names if name.endswith("_tokens")}
    row |= {"tenant_id": new_uuid(), "job_id": NO_JOB, "model": HIT, "model_version": "1"}
    row |= {"item_count": 1, "created_at": datetime.now(UTC) + timedelta(hours=3)}
    execute(engine, usage_ledger.insert().values(row))


def restore_before(engine: sa.Engine, call: UUID) -> None:
    """Restore the tables to before the last call was billed."""
    newest = sa.select(sa.func.max(usage_ledger.c.id)).scalar_subquery()
    execute(
        engine,
        sa.delete(billed_calls).where(billed_calls.c.request_id == call),
        sa.text("ALTER TABLE usage_ledger DISABLE TRIGGER append_only"),
        sa.delete(usage_ledger).where(usage_ledger.c.id == newest),
        sa.text("ALTER TABLE usage_ledger ENABLE TRIGGER append_only"),
    )


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("has_job", [True, False])
def test_bills_after_the_backup_are_restored(
    engine: sa.Engine, log: JobLog, *, known: bool, has_job: bool
) -> None:
    """With and without a bill and an unfinished job in the backup."""
    calls = [write_report(log) for _ in range(1 + known)]
    assert billed(engine) == ({*calls}, len(calls))
    restore_before(engine, calls[-1])
    add_later_hit(engine)
    assert billed(engine) == ({*calls[:-1]}, int(known))
    if has_job:  # newer than the reports, which are before its records on the log
        add_running_job(engine, 3, created_at=datetime.now(UTC) + timedelta(minutes=20))

    recovered = recover(engine, log.kafka)
    log.write(calls[0])

    assert (recovered.job_count, recovered.is_log_complete) == (int(has_job), True)
    with engine.connect() as connection:
        (entry,), _ = read_entries(connection, INSTALLATION, after=None, limit=2) or ([], False)
    assert (entry.action, entry.actor) == ("installation.recovered", "cli")
    assert entry.details["jobs"] == int(has_job)
    assert entry.details["records"] == recovered.record_count
    assert billed(engine) == ({*calls}, len(calls))
