"""Removes objects whose rows are deleted or expired: files, stored answers, encryption keys.

Any number of processes may run these removals: every deletion may be repeated.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.errors import Disposition, MillraceError
from jobs.store.idempotency import delete_expired_keys, find_expired_keys
from jobs.store.removable_objects import destroy_job_key, find_removable_files, mark_removed
from jobs.tables.jobs import jobs
from results.metrics import FILES_REMOVED, RETENTION_REMOVED
from storage.objects.object_store import ObjectStore

LOG = logging.getLogger(__name__)

REFUSED_MAX: Final = 10_000
"""Above it all are tried again: the store refuses everything, and its operator has to act."""

ROUND_FILES_MAX: Final = 200
"""Files per round: some seconds of work for a slow store."""

ROUND_KEYS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class RefusedObjects:
    """Keys that were refused since all were last tried. Not thread-safe."""

    keys: set[str] = field(default_factory=set)

    def delete(self, store: ObjectStore, key: str) -> MillraceError | None:
        """Delete an object; return the error when the store does not.

        A permanent refusal is remembered: the caller excludes `keys` when it selects the next
        objects.
        """
        try:
            store.delete(key)
        except MillraceError as failure:
            if failure.disposition is not Disposition.RETRY:
                self.keys.add(key)
            return failure
        return None

    def retry_refused(self, *, is_last: bool) -> None:
        """Forget the refusals once all other objects were tried, or when there are too many."""
        if is_last or len(self.keys) >= REFUSED_MAX:
            self.keys.clear()


@dataclass(frozen=True, slots=True)
class FileRemoval:
    """Removes the objects of deleted and expired files once no unfinished job reads them."""

    engine: sa.Engine
    store: ObjectStore
    is_stopping: Callable[[], bool] = lambda: False
    _refused: RefusedObjects = field(default_factory=RefusedObjects)

    def run_once(self) -> None:
        """Remove what is due. Raises one of DATABASE_UNAVAILABLE.

        An unavailable store is tried again in the next run; a file that it refuses to delete is
        skipped until the others were tried.
        """
        while self._round() and not self.is_stopping():
            pass

    def _round(self) -> bool:
        """Remove one round of files; return whether to run another."""
        with self.engine.begin() as connection:
            due = find_removable_files(
                connection, limit=ROUND_FILES_MAX, excluding=self._refused.keys
            )
        removed = []
        for removal in due:
            failure = self._refused.delete(self.store, removal.object_key)
            if failure is None:
                removed.append(removal.file_id)
                continue
            LOG.warning("an object stays", extra={"file": removal.file_id, "code": failure.code})
            if failure.disposition is Disposition.RETRY:
                break
        self._refused.retry_refused(is_last=len(due) < ROUND_FILES_MAX)
        if removed:
            with self.engine.begin() as connection:
                FILES_REMOVED.inc(mark_removed(connection, removed))
        return len(removed) == ROUND_FILES_MAX


@dataclass(frozen=True, slots=True)
class IdempotencyKeyRemoval:
    """Removes expired idempotency keys: the objects of their answers first, then their rows."""

    engine: sa.Engine
    store: ObjectStore
    _refused: RefusedObjects = field(default_factory=RefusedObjects)

    def run_once(self) -> None:
        """Remove all expired keys. Raises one of DATABASE_UNAVAILABLE.

        An unavailable store is tried again in the next run; refused objects block no other key.
        """
        while self._round():
            pass

    def _round(self) -> bool:
        """Remove one round of keys; return whether to run another."""
        with self.engine.connect() as connection:
            due = find_expired_keys(connection, ROUND_KEYS_MAX, excluding=self._refused.keys)
        removable = [key for key in due if key.body_key is None]
        failure: MillraceError | None = None
        for key in due:
            if key.body_key is None:
                continue
            refusal = self._refused.delete(self.store, key.body_key)
            if refusal is None:
                removable.append(key)
                continue
            failure = refusal
            if failure.disposition is Disposition.RETRY:
                break
        if removable:
            with self.engine.begin() as connection:
                RETENTION_REMOVED.labels("key").inc(delete_expired_keys(connection, removable))
        if failure is not None:
            LOG.warning("answers of keys stay", extra={"code": failure.code})
        self._refused.retry_refused(is_last=len(due) < ROUND_KEYS_MAX)
        return failure is None and len(due) == ROUND_KEYS_MAX


@dataclass(frozen=True, slots=True)
class KeyDestruction:
    """Destroys the encryption keys of deleted batches before their rows are removed."""

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
            is_waiting = (jobs.c.removal_due_at.is_not(None), jobs.c.zero_retention)
            waiting = set(connection.scalars(sa.select(jobs.c.id).where(*is_waiting)))
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
