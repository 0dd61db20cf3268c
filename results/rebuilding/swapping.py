"""Put what was made from the log in the place of what differs, in one transaction a job.

Rows that agree stay as they are. The ledger is only appended to: it gets the difference.
"""

from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.ids import JOB, SINGLE, public_id
from core.states import JobKind
from jobs.tables import jobs
from results.partitions import DayPartitions
from results.rebuilding.comparing import COLUMNS, COUNTERS, USAGE, Comparison, same
from results.rebuilding.shadow import LONG, SCHEMA
from tenancy.audit_log import CLI, Act, Action, record_act

_LOCK: Final = """
SELECT j.settled_at IS NOT NULL FROM job_counters c JOIN jobs j ON j.id = c.job_id
WHERE c.job_id = :job FOR UPDATE OF c
"""
"""As the writer locks: nobody else writes rows of this job until the commit."""

_THIS: Final = "job_day = :day AND job_id = :job"
_ALL: Final = ", ".join(("job_id", "job_day", "item_index", "finished_at", *COLUMNS))
_DELETE: Final = f"""
DELETE FROM items live WHERE {_THIS} AND NOT EXISTS (
    SELECT FROM {SCHEMA}.items shadow
    WHERE shadow.job_day = :day AND shadow.job_id = :job
        AND shadow.item_index = live.item_index AND {same("live", "shadow")}
)
"""  # noqa: S608  nothing of it comes from outside
_INSERT: Final = f"""
INSERT INTO items ({_ALL}) SELECT {_ALL} FROM {SCHEMA}.items shadow WHERE {_THIS} AND NOT EXISTS (
    SELECT FROM items live WHERE live.job_day = :day AND live.job_id = :job
        AND live.item_index = shadow.item_index
)
"""  # noqa: S608
_COUNT: Final = f"""
UPDATE job_counters live SET {", ".join(f"{n} = shadow.{n}" for n in COUNTERS)},
    closed_reason = shadow.closed_reason, updated_at = now()
FROM {SCHEMA}.job_counters shadow WHERE live.job_id = :job AND shadow.job_id = :job
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


def swap(live: sa.Engine, job: tuple[UUID, int], found: Comparison) -> bool:
    """Make a settled job's projections what the log says; False when it is not settled any more.

    Items whose place in the order is known keep it. Raises one of DATABASE_AWAY.
    """
    job_id, day = job
    bound = {"job": job_id, "day": day}
    DayPartitions(live).ensure([day])
    with live.begin() as connection:
        connection.execute(LONG)
        if not connection.scalar(_statement(_LOCK), bound):
            return False
        for text in (_DELETE, _INSERT, _COUNT):
            connection.execute(_statement(text), bound)
        if not found.usage_agrees:
            connection.execute(_statement(_CORRECT), bound)
        if not found.order_is_whole:
            connection.execute(_statement(_DROP_ORDER), bound)
            connection.execute(_statement(_COPY_ORDER), bound)
        _record(connection, job_id, found)
    return True


def _record(connection: sa.Connection, job_id: UUID, found: Comparison) -> None:
    row = connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).one()
    counts = {"missing": found.missing, "extra": found.extra, "different": found.different}
    act = Act(
        tenant_id=row.tenant_id,
        actor=CLI,
        action=Action.JOB_REBUILT,
        subject=public_id(JOB if row.kind == JobKind.BATCH else SINGLE, job_id),
        details=counts,
    )
    record_act(connection, act)


def _statement(text: str) -> sa.TextClause:
    return sa.text(text).bindparams(sa.bindparam("job", type_=sa.Uuid))
