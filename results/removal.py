"""Objects of files that were deleted or have expired: removed once no unfinished job reads them."""

import logging
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from core.errors import Disposition, MillraceError
from jobs.file_removal import files_to_remove, mark_removed
from results import metrics
from storage.objects import ObjectStore

LOG = logging.getLogger(__name__)

ROUND_FILES_MAX: Final = 200
"""Files of one round: some seconds of work for a store that answers slowly."""


@dataclass(frozen=True, slots=True)
class FileRemoval:
    """Any number of processes may remove: what one has removed, another finds gone."""

    engine: sa.Engine
    store: ObjectStore

    def step(self) -> None:
        """Remove what is due, a round of it. Raises one of DATABASE_AWAY.

        A store that is away is asked again in the next round; a file that it refuses to give up
        does not keep the others.
        """
        with self.engine.begin() as connection:
            due = files_to_remove(connection, limit=ROUND_FILES_MAX)
        gone = []
        for removal in due:
            try:
                self.store.delete(removal.object_key)
            except MillraceError as failure:
                LOG.warning(
                    "an object stays", extra={"file": removal.file_id, "code": failure.code}
                )
                if failure.disposition is Disposition.RETRY:
                    break
                continue
            gone.append(removal.file_id)
        if gone:
            with self.engine.begin() as connection:
                metrics.FILES_REMOVED.inc(mark_removed(connection, gone))
