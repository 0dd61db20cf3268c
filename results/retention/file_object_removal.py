"""Objects of files that were deleted or have expired: removed once no unfinished job reads them."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa

from core.errors import MillraceError
from jobs.store.file_removal import files_to_remove, mark_removed
from results import metrics
from results.finaliser.refused_objects import RefusedObjects
from storage.objects.object_store import ObjectStore

LOG = logging.getLogger(__name__)

ROUND_FILES_MAX: Final = 200
"""Files of one round: some seconds of work for a store that answers slowly."""


@dataclass(frozen=True, slots=True)
class FileRemoval:
    """Any number of processes may remove: what one has removed, another finds gone."""

    engine: sa.Engine
    store: ObjectStore
    is_stopping: Callable[[], bool] = lambda: False
    _refusals: RefusedObjects = field(default_factory=RefusedObjects)

    def run_once(self) -> None:
        """Remove what is due. Raises one of DATABASE_AWAY.

        A store that is away is asked again in the next step; a file that it refuses to give up
        rests until the others were tried.
        """
        while self._round() and not self.is_stopping():
            pass

    def _round(self) -> bool:
        """Remove some; return whether more may be due and nothing stood in the way."""
        with self.engine.begin() as connection:
            due = files_to_remove(connection, limit=ROUND_FILES_MAX, but=self._refusals.resting)
        gone = []
        for removal in due:
            try:
                failure = self._refusals.delete(self.store, removal.object_key)
            except MillraceError as away:
                LOG.warning("an object stays", extra={"file": removal.file_id, "code": away.code})
                break
            if failure is None:
                gone.append(removal.file_id)
            else:
                facts = {"file": removal.file_id, "code": failure.code}
                LOG.warning("an object stays", extra=facts)
        self._refusals.retry_refused(is_last=len(due) < ROUND_FILES_MAX)
        if gone:
            with self.engine.begin() as connection:
                metrics.FILES_REMOVED.inc(mark_removed(connection, gone))
        return len(gone) == ROUND_FILES_MAX
