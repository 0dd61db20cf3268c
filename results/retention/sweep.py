"""The retention sweep: deletes expired data and removes the remains of deleted data.

Each run is bounded. One finaliser at a time holds the lease.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from core.errors import Disposition, MillraceError
from results.metrics import RETENTION_REMOVED, RETENTION_WAITING
from results.retention import expired_data
from results.retention.batch_removal import BatchDataRemoval, waiting_query
from results.retention.day_removal import drop_old_bills, drop_unneeded_days
from results.retention.deletion import BatchTombstones
from results.retention.expired_data import OldRequest
from results.retention.object_removal import KeyDestruction
from results.retention.sweep_lease import SweepLease
from results.retention.tenant_erasure import TenantErasure
from results.settings import RetentionSettings
from storage.objects.object_store import ObjectStore

LOG = logging.getLogger(__name__)

LEASE: Final = "retention"
_LEASE_S: Final = 60.0
_SLICES_MAX: Final = 50  # of each kind in one run
_SLOW_RUNS: Final = 20  # every so many runs: days, tombstones and refused batches


@dataclass(slots=True)
class RetentionSweep:
    """One process of the role; any number of processes may run."""

    engine: sa.Engine
    store: ObjectStore
    settings: RetentionSettings
    holder: str  # names this process in the lease
    is_stopping: Callable[[], bool] = lambda: False
    _run_count: int = 0
    _files_after: sa.Row[Any] | None = None
    _lease: SweepLease = field(init=False)
    _tombstones: BatchTombstones = field(init=False)
    _keys: KeyDestruction = field(init=False)
    _data: BatchDataRemoval = field(init=False)
    _tenants: TenantErasure = field(init=False)

    def __post_init__(self) -> None:
        self._lease = SweepLease(self.engine, LEASE, self.holder, _LEASE_S)
        self._tombstones = BatchTombstones(self.engine, self.is_stopping)
        self._keys = KeyDestruction(self.engine, self.store, self.is_stopping)
        self._data = BatchDataRemoval(self.engine, self.store, self.is_stopping)
        self._tenants = TenantErasure(self.engine, self._tombstones, self.is_stopping)

    def run_once(self) -> None:
        """Run once if this process holds the lease. Raises one of DATABASE_UNAVAILABLE.

        1. Delete what deleted tenants have; make tombstones of expired batches. 2. Destroy keys of
        deleted zero-retention batches.
        3. Delete expired files. 4. Now and then drop days of items and of billed calls, and old
        tombstones.
        5. Remove expired requests. 6. Remove rows and objects of deleted batches.
        7. Remove rows of files whose objects were removed long ago.
        """
        days = self.settings
        if not self._has_lease():
            return
        hours = days.zero_retention_hours
        if self._run_count % _SLOW_RUNS == 0:
            self._tombstones.retry_refused()
        self._tenants.run_once()
        self._tombstones.run_once(expired_data.old_batches_query(days.batch_days))
        self._tombstones.run_once(expired_data.ended_query(hours))
        self._keys.run_once()
        self._run_slices("file_ended", expired_data.delete_unused_files, hours=hours)
        if days.file_days is not None:
            self._run_slices("file_ended", expired_data.delete_old_files, days=days.file_days)
        if self._run_count % _SLOW_RUNS == 0:
            RETENTION_REMOVED.labels("day").inc(drop_unneeded_days(self.engine))
            RETENTION_REMOVED.labels("bill_day").inc(drop_old_bills(self.engine))
            self._run_slices("tombstone", expired_data.purge_tombstones, days=days.tombstone_days)
            self._tenants.remove_rows()
        self._run_count += 1
        self._remove_requests()
        if self._has_lease():
            self._data.run_once(days.turn_rows_max)
        self._purge_files()
        with self.engine.connect() as connection:
            RETENTION_WAITING.set(connection.execute(waiting_query()).scalar_one())

    def _has_lease(self) -> bool:
        return not self.is_stopping() and self._lease.acquire()

    def _run_slices(self, kind: str, remove: Callable[..., int], **limits: Any) -> None:
        """Run slices until one finds nothing."""
        for _ in range(_SLICES_MAX):
            if self.is_stopping():
                return
            with self.engine.begin() as connection:
                count = remove(connection, **limits)
            RETENTION_REMOVED.labels(kind).inc(count)
            if not count:
                return

    def _remove_requests(self) -> None:
        """Remove expired single requests: the objects of their answers first, then their rows."""
        for _ in range(_SLICES_MAX):
            with self.engine.connect() as connection:
                old = expired_data.old_requests(connection, days=self.settings.request_days)
            if not old or self.is_stopping():
                return
            cleared = self._clear_answers(old)
            with self.engine.begin() as connection:
                RETENTION_REMOVED.labels("request").inc(
                    expired_data.remove_requests(connection, cleared)
                )
            if len(cleared) < len(old):
                return  # the store is unavailable

    def _clear_answers(self, old: Sequence[OldRequest]) -> list[OldRequest]:
        """Delete the objects of answers; return the requests without one.

        After a failure of the store no further object is tried in this run.
        """
        cleared, is_available = [], True
        for one in old:
            if one.body_key is not None:
                is_available = is_available and self._delete(one.body_key)
            if one.body_key is None or is_available:
                cleared.append(one)
        return cleared

    def _delete(self, key: str) -> bool:
        """Delete an object; False when the store is unavailable."""
        try:
            self.store.delete(key)
        except MillraceError as failure:
            LOG.warning("an answer stays", extra={"code": failure.code})
            return failure.disposition is not Disposition.RETRY
        RETENTION_REMOVED.labels("object").inc()
        return True

    def _purge_files(self) -> None:
        with self.engine.begin() as connection:
            count, self._files_after = expired_data.purge_files(
                connection, days=self.settings.tombstone_days, after=self._files_after
            )
        RETENTION_REMOVED.labels("file_row").inc(count)
