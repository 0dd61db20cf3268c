"""Batches past their time become tombstones, each in a transaction of its own.

One that Postgres does not let go rests for a while, so that it keeps no other: not in this turn,
and not in the next, which begins with the oldest again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from jobs.tables.jobs import jobs
from results.retention.deletion import make_tombstone
from results.retention.metrics import REMOVED
from results.retention.removal_failures import record_removal_failure

FAILURES_MAX: Final = 3
"""Failures that end a turn: each may last as long as a statement, and other work waits behind."""

_SLICES_MAX: Final = 50  # of the batches that a query finds at once, in one turn


@dataclass(frozen=True, slots=True)
class BatchTombstones:
    """One process; any number may bury, since each locks what it buries."""

    engine: sa.Engine
    is_stopping: Callable[[], bool] = lambda: False
    _resting: set[UUID] = field(default_factory=set)

    def run_once(self, due: sa.Select[Any]) -> None:
        """Bury the rows of `jobs` that `due` finds. Raises one of DATABASE_AWAY."""
        resting_max = len(self._resting) + FAILURES_MAX
        for _ in range(_SLICES_MAX):
            with self.engine.connect() as connection:
                found = connection.scalars(self._awake(due)).all()
            count = 0
            for job_id in found:
                if self.is_stopping() or len(self._resting) == resting_max:
                    return
                count += self._bury(due, job_id)
            if not count:
                return

    def retry_refused(self) -> None:
        """Try those that rest again."""
        self._resting.clear()

    def _awake(self, due: sa.Select[Any]) -> sa.Select[UUID]:
        resting = sa.literal(list(self._resting), sa.ARRAY(sa.Uuid))
        return due.with_only_columns(jobs.c.id).where(jobs.c.id != sa.all_(resting))

    def _bury(self, due: sa.Select[Any], job_id: UUID) -> int:
        """Bury one batch unless another process has it; return how many this did."""
        locked = due.where(jobs.c.id == job_id).with_for_update(skip_locked=True)
        with self.engine.connect() as connection:  # outside: when it fails, Postgres is away
            try:
                with connection.begin():
                    row = connection.execute(locked).one_or_none()
                    if row is None:
                        return 0
                    make_tombstone(connection, row, key_id=None)
            except sa.exc.DBAPIError as failure:
                record_removal_failure(job_id, failure)
                self._resting.add(job_id)
                return 0
        REMOVED.labels("tombstone_made").inc()
        return 1
