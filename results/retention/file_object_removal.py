"""Removes the objects of deleted and expired files once no unfinished job reads them."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa

from core.errors import MillraceError
from jobs.store.file_removal import find_removable_files, mark_removed
from results import metrics
from results.finaliser.refused_objects import RefusedObjects
from storage.objects.object_store import ObjectStore

LOG = logging.getLogger(__name__)

ROUND_FILES_MAX: Final = 200
"""Files per round: some seconds of work for a slow store."""


@dataclass(frozen=True, slots=True)
class FileRemoval:
    """Any number of processes may run: deletions may be repeated."""

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
            try:
                failure = self._refused.delete(self.store, removal.object_key)
            except MillraceError as error:
                LOG.warning("an object stays", extra={"file": removal.file_id, "code": error.code})
                break
            if failure is None:
                removed.append(removal.file_id)
            else:
                facts = {"file": removal.file_id, "code": failure.code}
                LOG.warning("an object stays", extra=facts)
        self._refused.retry_refused(is_last=len(due) < ROUND_FILES_MAX)
        if removed:
            with self.engine.begin() as connection:
                metrics.FILES_REMOVED.inc(mark_removed(connection, removed))
        return len(removed) == ROUND_FILES_MAX
