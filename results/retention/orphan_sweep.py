"""Removes objects and uploads that a crash left behind; finds them by listing the store."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

import sqlalchemy as sa

from core.errors import MillraceError
from core.object_names import ANSWERS, CALL_KEYS, FILES, KEYED_ANSWERS, KEYS, REQUESTS, RESULTS
from jobs.store.removable_objects import (
    FindOrphans,
    answers_without_idempotency_key,
    call_keys,
    files_without_row,
    inputs_without_open_request,
    job_keys_without_job,
    outputs_of_ended_batches,
    outputs_without_job,
)
from results import metrics
from results.finaliser.request_finaliser import unreferenced_answers
from storage.objects.object_store import ObjectStore
from storage.postgres.database_times import database_now_s

LOG = logging.getLogger(__name__)

_RULES: Final[tuple[tuple[str, tuple[FindOrphans, ...]], ...]] = (
    (FILES, (files_without_row,)),
    (RESULTS, (files_without_row,)),
    (ANSWERS, (outputs_of_ended_batches, outputs_without_job, unreferenced_answers)),
    (REQUESTS, (inputs_without_open_request,)),
    (KEYED_ANSWERS, (answers_without_idempotency_key,)),
    (KEYS, (job_keys_without_job,)),
    (CALL_KEYS, (call_keys,)),
)
_LOOKED_UP_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class OrphanSweep:
    """Any number of processes may run. `age_s` protects objects whose rows are not yet committed.

    Age is measured by the clock of Postgres: a host's clock may be wrong by days.
    """

    engine: sa.Engine
    store: ObjectStore
    age_s: float
    is_stopping: Callable[[], bool] = lambda: False

    def run_once(self) -> None:
        """Check all objects once. Raises one of DATABASE_UNAVAILABLE.

        Objects that the store refuses to delete are left to the next run.
        """
        try:
            metrics.UPLOADS_SWEPT.inc(self.store.sweep_temporary(self.age_s))
            newest_s = database_now_s(self.engine) - self.age_s
            for prefix, rules in _RULES:
                self._sweep(prefix, rules, newest_s)
        except MillraceError as failure:
            LOG.warning("the sweep of objects was cut short", extra={"code": failure.code})

    def _sweep(self, prefix: str, rules: tuple[FindOrphans, ...], newest_s: float) -> None:
        old = self._old_keys(prefix, newest_s)
        while keys := list(islice(old, _LOOKED_UP_AT_ONCE)):
            if self.is_stopping():
                return
            with self.engine.begin() as connection:
                orphans = set().union(*(find(connection, keys) for find in rules))
            for key in orphans:
                self.store.delete(key)
                metrics.ORPHANS_REMOVED.inc()
                LOG.info("an orphan was removed", extra={"key": key})

    def _old_keys(self, prefix: str, newest_s: float) -> Iterator[str]:
        for found in self.store.list(prefix):
            if found.modified_s <= newest_s:
                yield found.key
