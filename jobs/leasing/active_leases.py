"""The active leases of this process in one role, kept alive by a heartbeat."""

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.errors import LeaseLostError
from jobs.leasing import leases
from jobs.leasing.leases import Lease
from storage.postgres.engines import DATABASE_UNAVAILABLE

_LOG = logging.getLogger(__name__)
HEARTBEATS_PER_TTL: Final = 3  # two may fail before a lease expires


@dataclass(frozen=True, slots=True)
class ActiveLeases:
    """Claims, extends and releases leases of one role for one holder. Thread-safe."""

    engine: sa.Engine
    _: KW_ONLY
    role: str  # the kind of work that the leases permit
    holder: str  # names this process among all replicas
    ttl_s: float
    on_lost: Callable[[], None] = lambda: None  # counts lost leases
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _active: dict[UUID, Lease] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Jobs whose lease this process holds."""
        return len(self._active)

    @property
    def heartbeat_s(self) -> float:
        """Interval between two calls of `extend_all`, in seconds."""
        return self.ttl_s / HEARTBEATS_PER_TTL

    def claim(self, where: sa.ColumnElement[bool], limit: int) -> list[Lease]:
        """Claim up to `limit` jobs without a holder, oldest first."""
        if limit <= 0:
            return []
        with self.engine.begin() as connection:
            claimed = leases.claim(
                connection,
                role=self.role,
                holder=self.holder,
                ttl_s=self.ttl_s,
                limit=limit,
                where=where,
            )
        with self._lock:
            self._active.update((lease.job_id, lease) for lease in claimed)
        return claimed

    def is_leased(self, lease: Lease) -> bool:
        """Whether `lease` was held at the last heartbeat. Enough to go on, not to write."""
        with self._lock:
            return self._active.get(lease.job_id) == lease

    def raise_if_lost(self, lease: Lease) -> None:
        """Raise LeaseLostError if `lease` was lost; see `is_leased`."""
        if not self.is_leased(lease):
            raise LeaseLostError(job_id=lease.job_id, role=lease.role, epoch=lease.epoch)

    def lease_of(self, job_id: UUID) -> Lease | None:
        """Return the lease on a job that this process holds."""
        with self._lock:
            return self._active.get(job_id)

    def extend_all(self) -> None:
        """Send one heartbeat and drop the leases that were lost."""
        with self._lock:
            active = list(self._active.values())
        if not active:
            return
        with self.engine.begin() as connection:
            extended = leases.extend(connection, active, self.ttl_s)
        for lease in active:
            if lease.job_id not in extended and self.let_expire(lease):
                self.on_lost()
                _LOG.warning("a lease was lost", extra={"job": lease.job_id.hex})

    def release(self, *released: Lease) -> None:
        """Let others claim the jobs now.

        If Postgres is unavailable the leases expire instead, and the error is raised.
        """
        if not released:
            return
        for lease in released:
            self.let_expire(lease)
        with self.engine.begin() as connection:
            # In the order in which heartbeats lock them.
            for lease in sorted(released, key=lambda lease: lease.job_id):
                leases.release(connection, lease)

    def release_in(self, connection: sa.Connection, lease: Lease) -> None:
        """Let others claim the job when the transaction commits; after a rollback it expires."""
        self.let_expire(lease)
        leases.release(connection, lease)

    def let_expire(self, lease: Lease) -> bool:
        """Stop the heartbeat of a lease: others may claim the job once it expires.

        Returns whether the lease was held.
        """
        with self._lock:
            if self._active.get(lease.job_id) != lease:
                return False
            del self._active[lease.job_id]
            return True

    def back_off_lease(self, lease: Lease, pause_s: float) -> None:
        """Let a lease expire after `pause_s`; after its TTL if Postgres is unavailable.

        Harmless if the lease is lost.
        """
        self.let_expire(lease)
        with contextlib.suppress(*DATABASE_UNAVAILABLE), self.engine.begin() as connection:
            leases.extend(connection, [lease], pause_s)

    def suspend_lease(self, lease: Lease, pause_s: float | None = None) -> None:
        """Let a lease expire and mark it as without holder, unless Postgres is unavailable.

        It expires in `pause_s` if that is given.
        """
        self.let_expire(lease)
        with contextlib.suppress(*DATABASE_UNAVAILABLE), self.engine.begin() as connection:
            leases.suspend(connection, lease, pause_s)

    def release_all(self) -> None:
        """Release every lease, so that other replicas need not wait for them to expire."""
        with self._lock:
            active = list(self._active.values())
        self.release(*active)
