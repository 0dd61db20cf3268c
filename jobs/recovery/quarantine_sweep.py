"""Lets the batches of tenants in quarantine wait, and lets them go on when it has ended.

A batch that waits is like a paused one (ADR 24): its records on the log are void, and afterwards
intake emits their items again. The pause of its owner stays beside it.
"""

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from core.states import JobKind
from jobs import metrics
from jobs.expansion.job_loads import RUNNING
from jobs.store.controls import write_control_state
from jobs.store.tenant_quarantines import IS_ACTIVE, OF_JOB
from jobs.tables.jobs import jobs
from jobs.tables.quarantines import tenant_quarantines

_JOBS_MAX: Final = 200  # in one transaction

_MUST_WAIT: Final = sa.and_(
    RUNNING,
    jobs.c.kind == JobKind.BATCH.value,
    OF_JOB,
    IS_ACTIVE,
    jobs.c.quarantined_until.is_distinct_from(tenant_quarantines.c.ends_at),
)
_MAY_GO_ON: Final = sa.and_(
    RUNNING,
    # Literal, so that Postgres recognises the partial index.
    sa.literal_column("jobs.quarantined_until IS NOT NULL AND jobs.state = 'in_progress'"),
    ~sa.exists().where(OF_JOB, IS_ACTIVE),
)
_HELD: Final = (
    sa.select(jobs, tenant_quarantines.c.ends_at)
    .join(tenant_quarantines, OF_JOB)
    .where(_MUST_WAIT)
    .limit(_JOBS_MAX)
    .with_for_update(of=jobs, key_share=True, skip_locked=True)
)
_RELEASED: Final = (
    sa.select(jobs)
    .where(_MAY_GO_ON)
    .limit(_JOBS_MAX)
    .with_for_update(of=jobs, key_share=True, skip_locked=True)
)


@dataclass(frozen=True, slots=True)
class QuarantineSweep:
    """Applies quarantines to the batches in progress. Any number of processes may run it."""

    engine: sa.Engine

    def run_once(self) -> None:
        """Apply what has changed. Raises one of DATABASE_UNAVAILABLE."""
        while self._hold() == _JOBS_MAX:
            pass
        while self._release() == _JOBS_MAX:
            pass
        with self.engine.begin() as connection:
            connection.execute(sa.delete(tenant_quarantines).where(~IS_ACTIVE))
            active = sa.select(sa.func.count()).select_from(tenant_quarantines)
            metrics.TENANT_QUARANTINES.set(connection.scalar(active) or 0)

    def _hold(self) -> int:
        """Make the records of batches void that must wait; return how many batches."""
        with self.engine.begin() as connection:
            found = connection.execute(_HELD).all()
            for row in found:
                values = {"quarantined_until": row.ends_at, "void_below": row.control_version + 1}
                write_control_state(connection, row, values)
        return len(found)

    def _release(self) -> int:
        """Let batches go on whose quarantine has ended; return how many."""
        with self.engine.begin() as connection:
            found = connection.execute(_RELEASED).all()
            for row in found:
                write_control_state(connection, row, {"quarantined_until": None})
        return len(found)
