"""The leases that this process holds, kept alive by a heartbeat; safe for threads."""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.errors import LeaseLostError
from jobs.leasing import leases
from jobs.leasing.leases import Lease
from storage.postgres.engines import DATABASE_AWAY

_LOG = logging.getLogger(__name__)
HEARTBEATS_PER_TTL: Final = 3  # two may fail before a lease runs out


class ActiveLeases:
    """Claims, extends and gives back leases of one role for one holder."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        role: str,
        holder: str,
        ttl_s: float,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`holder` names this process among all replicas; `on_lost` counts what others took."""
        self._engine = engine
        self._on_lost = on_lost
        self._role = role
        self._holder = holder
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        self._held: dict[UUID, Lease] = {}

    @property
    def role(self) -> str:
        """For which kind of work the leases are."""
        return self._role

    @property
    def count(self) -> int:
        """Jobs whose lease this process holds."""
        return len(self._held)

    @property
    def heartbeat_s(self) -> float:
        """How often `extend_all` is due."""
        return self._ttl_s / HEARTBEATS_PER_TTL

    def claim(self, where: sa.ColumnElement[bool], limit: int) -> list[Lease]:
        """Take up to `limit` jobs that nobody holds, oldest first."""
        if limit <= 0:
            return []
        with self._engine.begin() as connection:
            claimed = leases.claim(
                connection,
                role=self._role,
                holder=self._holder,
                ttl_s=self._ttl_s,
                limit=limit,
                where=where,
            )
        with self._lock:
            self._held |= {lease.job_id: lease for lease in claimed}
        return claimed

    def holds(self, lease: Lease) -> bool:
        """Whether `lease` was alive at the last heartbeat: worth going on, no proof for a write."""
        with self._lock:
            return self._held.get(lease.job_id) == lease

    def raise_if_lost(self, lease: Lease) -> None:
        """Raises LeaseLostError once work on `lease` is not worth going on; see `holds`."""
        if not self.holds(lease):
            raise LeaseLostError(job_id=lease.job_id, role=lease.role, epoch=lease.epoch)

    def lease_of(self, job_id: UUID) -> Lease | None:
        """Return the lease on a job that this process holds."""
        with self._lock:
            return self._held.get(job_id)

    def extend_all(self) -> None:
        """Send one heartbeat; what is lost is not held any more."""
        with self._lock:
            held = list(self._held.values())
        if not held:
            return
        with self._engine.begin() as connection:
            alive = leases.extend(connection, held, self._ttl_s)
        for lease in held:
            if lease.job_id not in alive and self._forget(lease):
                self._on_lost()
                _LOG.warning("a lease was lost", extra={"job": lease.job_id.hex})

    def release(self, *given: Lease) -> None:
        """Let others have the jobs at once; a bit later when Postgres is away, which is raised."""
        if not given:
            return
        for lease in given:
            self._forget(lease)
        with self._engine.begin() as connection:
            # In the order in which heartbeats lock them.
            for lease in sorted(given, key=lambda lease: lease.job_id):
                leases.release(connection, lease)

    def release_in(self, connection: sa.Connection, lease: Lease) -> None:
        """Let others have the job when the transaction commits; if it does not, a bit later."""
        self._forget(lease)
        leases.release(connection, lease)

    def let_expire(self, lease: Lease) -> None:
        """Stop the heartbeat: the lease runs out, and only then is the job tried again."""
        self._forget(lease)

    def back_off_lease(self, lease: Lease, pause_s: float) -> None:
        """Put aside for so long, or as long as ever when Postgres is away; harmless when lost."""
        self._forget(lease)
        with contextlib.suppress(*DATABASE_AWAY), self._engine.begin() as connection:
            leases.extend(connection, [lease], pause_s)

    def suspend_lease(self, lease: Lease) -> None:
        """Put aside and let others see it; they cannot, for a while, when Postgres is away."""
        self._forget(lease)
        with contextlib.suppress(*DATABASE_AWAY), self._engine.begin() as connection:
            leases.suspend(connection, lease)

    def release_all(self) -> None:
        """Give everything back, so that a replica need not wait for the leases to run out."""
        with self._lock:
            held = list(self._held.values())
        self.release(*held)

    def _forget(self, lease: Lease) -> bool:
        with self._lock:
            if self._held.get(lease.job_id) != lease:
                return False
            del self._held[lease.job_id]
            return True
