"""Destroys the encryption keys of deleted batches before their rows are removed."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.errors import Disposition, MillraceError
from jobs.store.job_key import destroy_job_key
from jobs.tables.jobs import jobs
from storage.objects.object_store import ObjectStore

LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyDestruction:
    """Any number of processes may run: destroying may be repeated."""

    engine: sa.Engine
    store: ObjectStore
    is_stopping: Callable[[], bool] = lambda: False
    _done: set[UUID] = field(default_factory=set)  # destroyed, of the batches still to remove

    def run_once(self) -> None:
        """Destroy the keys of batches whose removal is pending. Raises one of DATABASE_UNAVAILABLE.

        An unavailable store is tried again in the next run; a key that it refuses to delete does
        not block the others.
        """
        with self.engine.connect() as connection:
            waiting = set(connection.scalars(waiting_keys_query()))
        self._done.intersection_update(waiting)
        for job_id in waiting - self._done:
            if self.is_stopping():
                return
            try:
                destroy_job_key(self.store, job_id)
            except MillraceError as failure:
                LOG.warning("a key stays", extra={"job": job_id.hex, "code": failure.code})
                if failure.disposition is Disposition.RETRY:
                    return
                continue
            self._done.add(job_id)


def waiting_keys_query() -> sa.Select[UUID]:
    """Return the query of deleted zero-retention batches whose removal is pending."""
    return sa.select(jobs.c.id).where(jobs.c.removal_due_at.is_not(None), jobs.c.zero_retention)
