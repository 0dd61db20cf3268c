"""Replaces what differs in the live tables with the rebuilt rows, one transaction per job.

Equal rows are not touched. The ledger is append-only and gets the difference. Lost counters are
restored.
"""

from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.ids import JOB, SINGLE, public_id
from core.states import JobKind
from jobs.tables.jobs import jobs
from results.rebuilding.comparison import COLUMNS, COUNTERS, USAGE, Comparison, rows_equal
from results.rebuilding.missing_dead_letters import add_missing
from results.rebuilding.rebuild_outcome import RebuildOutcome
from results.rebuilding.shadow_tables import LONG_TIMEOUT, SCHEMA, statement
from results.writer.day_partitions import DayPartitions
from tenancy.audit_log import CLI, Action, AuditEvent, record_audit_event

_LOCK: Final = """
SELECT j.settled_at IS NOT NULL FROM job_counters c JOIN jobs j ON j.id = c.job_id
WHERE c.job_id = :job AND j.deleted_at IS NULL FOR UPDATE OF c
"""
"""The writer's lock: no other process writes rows of this job until the commit."""

_LOCK_JOB: Final = """
SELECT settled_at IS NOT NULL FROM jobs WHERE id = :job AND deleted_at IS NULL FOR UPDATE
"""
"""For lost counters: the writer ignores such a job, and this lock keeps a deletion out."""

_THIS: Final = "job_day = :day AND job_id = :job"
_ALL: Final = ", ".join(("job_id", "job_day", "item_index", "finished_at", *COLUMNS))
_DELETE: Final = f"""
DELETE FROM items live WHERE {_THIS} AND NOT EXISTS (
    SELECT FROM {SCHEMA}.items shadow
    WHERE shadow.job_day = :day AND shadow.job_id = :job
        AND shadow.item_index = live.item_index AND {rows_equal("live", "shadow")}
)
"""  # noqa: S608  no outside input
_INSERT: Final = f"""
INSERT INTO items ({_ALL}) SELECT {_ALL} FROM {SCHEMA}.items shadow WHERE {_THIS} AND NOT EXISTS (
    SELECT FROM items live WHERE live.job_day = :day AND live.job_id = :job
        AND live.item_index = shadow.item_index
)
"""  # noqa: S608
_COUNT: Final = f"""
INSERT INTO job_counters (job_id, closed_reason, {", ".join(COUNTERS)})
SELECT job_id, closed_reason, {", ".join(COUNTERS)} FROM {SCHEMA}.job_counters WHERE job_id = :job
ON CONFLICT (job_id) DO UPDATE SET {", ".join(f"{n} = excluded.{n}" for n in COUNTERS)},
    closed_reason = excluded.closed_reason, updated_at = now()
"""  # noqa: S608
_CORRECT: Final = f"""
INSERT INTO usage_ledger (tenant_id, job_id, model, model_version, {", ".join(USAGE)})
SELECT jobs.tenant_id, jobs.id, jobs.model, jobs.model_version,
    {", ".join(f"shadow.{name} - live.{name}" for name in USAGE)}
FROM jobs,
    (SELECT {", ".join(f"coalesce(sum({n}), 0) AS {n}" for n in USAGE)}
        FROM usage_ledger WHERE job_id = :job) AS live,
    (SELECT {", ".join(f"coalesce(sum({n}), 0) AS {n}" for n in USAGE)}
        FROM {SCHEMA}.usage_ledger WHERE job_id = :job) AS shadow
WHERE jobs.id = :job
"""  # noqa: S608
_DROP_ORDER: Final = "DELETE FROM job_slices WHERE job_id = :job"
_COPY_ORDER: Final = f"""
INSERT INTO job_slices SELECT * FROM {SCHEMA}.job_slices WHERE job_id = :job
"""  # noqa: S608


def swap(live: sa.Engine, job: tuple[UUID, int], found: Comparison) -> RebuildOutcome:
    """Make the live rows, counters, ledger and order of a settled job equal to the rebuilt ones.

    Returns GONE when the job was deleted since it was compared, DIFFERS when it is no longer
    settled. A complete order is kept as it is. Raises one of DATABASE_UNAVAILABLE.
    """
    job_id, day = job
    bound: dict[str, object] = {"job": job_id, "day": day}
    DayPartitions(live).ensure([day])
    with live.begin() as connection:
        connection.execute(LONG_TIMEOUT)
        is_settled = _lock(connection, bound)
        if not is_settled:
            return RebuildOutcome.GONE if is_settled is None else RebuildOutcome.DIFFERS
        for text in (_DELETE, _INSERT, _COUNT):
            connection.execute(statement(text), bound)
        add_missing(connection, job)
        if not found.usage_agrees:
            connection.execute(statement(_CORRECT), bound)
        if not found.is_order_complete:
            connection.execute(statement(_DROP_ORDER), bound)
            connection.execute(statement(_COPY_ORDER), bound)
        _record(connection, job_id, found)
    return RebuildOutcome.SWAPPED


def _lock(connection: sa.Connection, bound: dict[str, object]) -> bool | None:
    """Lock out writer and deletion; return whether the job is settled, None when deleted."""
    is_settled: bool | None = connection.scalar(statement(_LOCK), bound)
    if is_settled is None:  # the counters are lost or deleted
        is_settled = connection.scalar(statement(_LOCK_JOB), bound)
    return is_settled


def _record(connection: sa.Connection, job_id: UUID, found: Comparison) -> None:
    row = connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).one()
    counts = {
        "missing": found.missing,
        "extra": found.extra,
        "different": found.different,
        "dead_letters": found.letters_missing,
    }
    act = AuditEvent(
        tenant_id=row.tenant_id,
        actor=CLI,
        action=Action.JOB_REBUILT,
        subject=public_id(JOB if row.kind == JobKind.BATCH else SINGLE, job_id),
        details=counts,
    )
    record_audit_event(connection, act)
