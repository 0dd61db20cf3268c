"""Idempotency keys past their time: their objects go first, then their rows."""

import logging
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa

from core.errors import MillraceError
from jobs.store.expired_keys import ExpiredKey, expired_keys, forget
from results.finaliser.refused_objects import RefusedObjects
from results.retention.metrics import REMOVED
from storage.objects.object_store import ObjectStore

LOG = logging.getLogger(__name__)

ROUND_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class IdempotencyKeyRemoval:
    """Any number of processes may remove."""

    engine: sa.Engine
    store: ObjectStore
    _refusals: RefusedObjects = field(default_factory=RefusedObjects)

    def run_once(self) -> None:
        """Remove all that is due. Raises one of DATABASE_AWAY.

        A store that is away is asked again in the next step; what it refuses keeps no other key.
        """
        while self._round():
            pass

    def _round(self) -> bool:
        """Remove some of what is due; whether it is worth going on."""
        with self.engine.connect() as connection:
            due = expired_keys(connection, ROUND_MAX, but=self._refusals.resting)
        gone = [key for key in due if key.body_key is None]
        failure = self._delete_objects(due, gone)
        if gone:
            with self.engine.begin() as connection:
                REMOVED.labels("key").inc(forget(connection, gone))
        if failure is not None:
            LOG.warning("answers of keys stay", extra={"code": failure.code})
        self._refusals.retry_refused(is_last=len(due) < ROUND_MAX)
        return failure is None and len(due) == ROUND_MAX

    def _delete_objects(
        self, due: list[ExpiredKey], gone: list[ExpiredKey]
    ) -> MillraceError | None:
        """Add to `gone` whose object is; return the last failure."""
        last: MillraceError | None = None
        for key in due:
            if key.body_key is None:
                continue
            try:
                refusal = self._refusals.delete(self.store, key.body_key)
            except MillraceError as away:
                return away
            if refusal is None:
                gone.append(key)
            else:
                last = refusal
        return last
