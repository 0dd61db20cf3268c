"""Idempotency keys past their time: their objects go first, then their rows."""

import logging
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from core.errors import MillraceError
from jobs.expired_keys import expired_keys, forget
from results.retention.metrics import REMOVED
from storage.objects import ObjectStore

LOG = logging.getLogger(__name__)

ROUND_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class KeyRemoval:
    """Any number of processes may remove."""

    engine: sa.Engine
    store: ObjectStore

    def step(self) -> None:
        """Remove all that is due. Raises one of DATABASE_AWAY; a store that is away waits."""
        count = ROUND_MAX
        while count == ROUND_MAX:
            with self.engine.connect() as connection:
                due = expired_keys(connection, ROUND_MAX)
            try:
                for key in due:
                    if key.body_key is not None:
                        self.store.delete(key.body_key)
            except MillraceError as failure:
                LOG.warning("answers of keys stay", extra={"code": failure.code})
                return
            with self.engine.begin() as connection:
                count = forget(connection, due) if due else 0
            REMOVED.labels("key").inc(count)
