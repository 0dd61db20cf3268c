"""Reads how much input waits for its verdict, by pool."""

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from jobs.expansion.backlog import ValidatingFiles
from jobs.tables.files import job_inputs
from jobs.tables.jobs import jobs
from jobs.validation.model_rule import FindModel
from jobs.validation.verdicts import VALIDATION_DUE
from registry.model_version import ModelVersion

FILES_MAX: Final = 10_000
"""Files of each kind that are counted, the oldest first: more would only keep Postgres busy."""

_EXPIRES_S: Final = sa.cast(sa.extract("epoch", jobs.c.expires_at), sa.Double).label("expires_s")
# A job that is paused or in quarantine needs no replica, whatever its files hold.
_MAY_RUN: Final = sa.and_(jobs.c.paused_at.is_(None), jobs.c.quarantined_until.is_(None))
# Files that no intake has begun to validate have no pool: nobody has read what they name.
_FIRST: Final = (
    sa.select(
        jobs.c.validating_pool.label("pool"),
        jobs.c.id,
        jobs.c.input_bytes.label("size_bytes"),
        _EXPIRES_S,
    )
    .where(VALIDATION_DUE, jobs.c.close_reason.is_(None), jobs.c.validating_pool.is_not(None))
    .where(_MAY_RUN)
    .order_by(jobs.c.created_at)
    .limit(FILES_MAX)
    .subquery("first_files")
)
_APPENDED: Final = (
    sa.select(jobs.c.pool, jobs.c.id, job_inputs.c.size_bytes, _EXPIRES_S)
    .join(job_inputs, job_inputs.c.job_id == jobs.c.id)
    # Literal, so that Postgres recognises the partial index.
    .where(job_inputs.c.state == sa.literal_column("'validating'"))
    .where(jobs.c.state == "in_progress", jobs.c.close_reason.is_(None), _MAY_RUN)
    .order_by(job_inputs.c.job_id)
    .limit(FILES_MAX)
    .subquery("appended_files")
)
_FILES: Final = sa.union_all(sa.select(_FIRST), sa.select(_APPENDED)).subquery("files")

VALIDATING: Final[sa.Select[Any]] = sa.select(
    _FILES.c.pool,
    sa.func.count(sa.distinct(_FILES.c.id)).label("jobs"),
    sa.cast(sa.func.sum(_FILES.c.size_bytes), sa.BigInteger).label("size_bytes"),
    sa.func.min(_FILES.c.expires_s).label("deadline_s"),
).group_by(_FILES.c.pool)
"""The query of `find_validating_files`."""


def find_validating_files(connection: sa.Connection) -> dict[str, ValidatingFiles]:
    """Return the files without a verdict by pool: first files being read, and appended files.

    Those of jobs that are paused or in quarantine do not count.
    """
    return {
        row.pool: ValidatingFiles(row.jobs, row.size_bytes, row.deadline_s)
        for row in connection.execute(VALIDATING)
    }


@dataclass(slots=True)
class FirstPool:
    """Finds models for a validation, and records the pool of the first one. Used by one thread.

    The verdict sets the pool of the job itself; until then, `validating_pool` has it.
    """

    engine: sa.Engine
    job_id: UUID
    find_model: FindModel
    _is_recorded: bool = False

    def find(self, name: str) -> ModelVersion | None:
        """Return what `find_model` returns. Raises one of DATABASE_UNAVAILABLE."""
        found = self.find_model(name)
        if found is not None and not self._is_recorded:
            self._is_recorded = True
            with self.engine.begin() as connection:
                connection.execute(
                    sa.update(jobs)
                    .where(jobs.c.id == self.job_id, VALIDATION_DUE)
                    .values(validating_pool=found.pool)
                )
        return found
