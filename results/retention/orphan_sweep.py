"""Removes objects and uploads that a crash left behind; finds them by listing the store.

A listing of millions of objects costs money and minutes, so one process at a time does it.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

import sqlalchemy as sa

from core.errors import LeaseLostError, MillraceError
from core.object_names import (
    ANSWERS,
    CALL_KEYS,
    FILES,
    KEYED_ANSWERS,
    KEYS,
    ORDERS,
    REQUESTS,
    RESULTS,
)
from jobs.store.removable_objects import (
    FindOrphans,
    answers_without_idempotency_key,
    call_keys,
    files_without_row,
    inputs_without_open_request,
    job_keys_without_job,
    outputs_of_ended_batches,
    outputs_without_job,
    unneeded_orders,
)
from results import metrics
from results.finaliser.request_finaliser import unreferenced_answers
from results.retention.sweep_lease import SweepLease
from storage.objects.object_store import ObjectStore
from storage.postgres.database_times import database_now_s

LOG = logging.getLogger(__name__)

_RULES: Final[tuple[tuple[str, tuple[FindOrphans, ...]], ...]] = (
    (FILES, (files_without_row,)),
    (RESULTS, (files_without_row,)),
    (ANSWERS, (outputs_of_ended_batches, outputs_without_job, unreferenced_answers)),
    (REQUESTS, (inputs_without_open_request,)),
    (ORDERS, (unneeded_orders,)),
    (KEYED_ANSWERS, (answers_without_idempotency_key,)),
    (KEYS, (job_keys_without_job,)),
    (CALL_KEYS, (call_keys,)),
)
_LOOKED_UP_AT_ONCE: Final = 500
_LISTED_PER_LEASE: Final = 10_000
"""Objects that are listed between two extensions of the lease: ten pages of S3, some seconds."""

LEASE: Final = "orphans"
_LEASE_INTERVALS: Final = 1.5
_LEASE_S_MIN: Final = 60.0


def orphan_lease(engine: sa.Engine, holder: str, *, interval_s: float) -> SweepLease:
    """Return the lease on sweeps that start every `interval_s` seconds.

    It outlives the pause, so its holder sweeps again and no other process does in between.
    """
    ttl_s = max(_LEASE_S_MIN, _LEASE_INTERVALS * interval_s)
    return SweepLease(engine, LEASE, holder, ttl_s)


@dataclass(frozen=True, slots=True)
class OrphanSweep:
    """Any number of processes may run: the one with the lease sweeps.

    `age_s` protects objects whose rows are not yet committed.

    Age is measured by the clock of Postgres: a host's clock may be wrong by days.
    """

    engine: sa.Engine
    store: ObjectStore
    age_s: float
    lease: SweepLease
    is_stopping: Callable[[], bool] = lambda: False

    def run_once(self) -> None:
        """Check all objects once, unless another process holds the lease.

        Objects that the store refuses to delete are left to the next run. Raises one of
        DATABASE_UNAVAILABLE.
        """
        if not self.lease.acquire():
            return
        try:
            metrics.UPLOADS_SWEPT.inc(self.store.sweep_temporary(self.age_s))
            newest_s = database_now_s(self.engine) - self.age_s
            for prefix, rules in _RULES:
                self._sweep(prefix, rules, newest_s)
        except LeaseLostError:
            LOG.warning("the sweep of objects went to another process")
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
        for position, found in enumerate(self.store.list(prefix), 1):
            if position % _LISTED_PER_LEASE == 0 and not self.lease.acquire():
                raise LeaseLostError
            if found.modified_s <= newest_s:
                yield found.key
