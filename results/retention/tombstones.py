"""Turns expired batches into tombstones, each in a transaction of its own.

A batch that Postgres refuses is skipped until `retry_refused`, so that it does not block the others
in this run and, as queries return the oldest first, in the next.
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
"""Failures that end a run: each may last a statement timeout, and other work waits."""

_SLICES_MAX: Final = 50  # of batches that the query finds, in one run


@dataclass(frozen=True, slots=True)
class BatchTombstones:
    """Any number of processes may run, since each locks the batch."""

    engine: sa.Engine
    is_stopping: Callable[[], bool] = lambda: False
    _refused: set[UUID] = field(default_factory=set)

    def run_once(self, due: sa.Select[Any]) -> None:
        """Make tombstones of the rows of `jobs` that `due` finds.

        Raises one of DATABASE_UNAVAILABLE.
        """
        refused_max = len(self._refused) + FAILURES_MAX
        for _ in range(_SLICES_MAX):
            with self.engine.connect() as connection:
                found = connection.scalars(self._not_refused(due)).all()
            count = 0
            for job_id in found:
                if self.is_stopping() or len(self._refused) == refused_max:
                    return
                count += self._make_one(due, job_id)
            if not count:
                return

    def retry_refused(self) -> None:
        """Try refused batches again in the next run."""
        self._refused.clear()

    def _not_refused(self, due: sa.Select[Any]) -> sa.Select[UUID]:
        refused = sa.literal(list(self._refused), sa.ARRAY(sa.Uuid))
        return due.with_only_columns(jobs.c.id).where(jobs.c.id != sa.all_(refused))

    def _make_one(self, due: sa.Select[Any], job_id: UUID) -> int:
        """Make one tombstone unless another process has the lock; return how many were made."""
        locked = due.where(jobs.c.id == job_id).with_for_update(skip_locked=True)
        with self.engine.connect() as connection:  # an error here is an unavailable database
            try:
                with connection.begin():
                    row = connection.execute(locked).one_or_none()
                    if row is None:
                        return 0
                    make_tombstone(connection, row, key_id=None)
            except sa.exc.DBAPIError as failure:
                record_removal_failure(job_id, failure)
                self._refused.add(job_id)
                return 0
        REMOVED.labels("tombstone_made").inc()
        return 1
