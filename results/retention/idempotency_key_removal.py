"""Removes expired idempotency keys: the objects of their answers first, then their rows."""

import logging
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa

from core.errors import MillraceError
from jobs.store.idempotency import ExpiredIdempotencyKey, delete_expired_keys, find_expired_keys
from results.finaliser.refused_objects import RefusedObjects
from results.retention.metrics import REMOVED
from storage.objects.object_store import ObjectStore

LOG = logging.getLogger(__name__)

ROUND_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class IdempotencyKeyRemoval:
    """Any number of processes may run."""

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
            due = find_expired_keys(connection, ROUND_MAX, excluding=self._refused.keys)
        removable = [key for key in due if key.body_key is None]
        failure = self._delete_objects(due, removable)
        if removable:
            with self.engine.begin() as connection:
                REMOVED.labels("key").inc(delete_expired_keys(connection, removable))
        if failure is not None:
            LOG.warning("answers of keys stay", extra={"code": failure.code})
        self._refused.retry_refused(is_last=len(due) < ROUND_MAX)
        return failure is None and len(due) == ROUND_MAX

    def _delete_objects(
        self, due: list[ExpiredIdempotencyKey], removable: list[ExpiredIdempotencyKey]
    ) -> MillraceError | None:
        """Add the keys whose object was deleted to `removable`; return the last error."""
        last: MillraceError | None = None
        for key in due:
            if key.body_key is None:
                continue
            try:
                refusal = self._refused.delete(self.store, key.body_key)
            except MillraceError as failure:
                return failure
            if refusal is None:
                removable.append(key)
            else:
                last = refusal
        return last
