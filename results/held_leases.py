"""Keeps the leases of running work alive, from a thread of its own."""

import logging
import threading
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.errors import LeaseLostError
from jobs.leases import Lease, extend
from storage.postgres import DATABASE_AWAY

LOG = logging.getLogger(__name__)

_BEATS_PER_LEASE: Final = 3  # two may fail before the lease runs out


class HeldLeases:
    """The leases of this process; work asks `check` whether it still has its own."""

    def __init__(self, engine: sa.Engine, *, ttl_s: float) -> None:
        """`ttl_s` is the life of a lease without a beat."""
        self._engine = engine
        self._ttl_s = ttl_s
        self._held: dict[UUID, Lease] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def add(self, lease: Lease) -> None:
        """Keep `lease` alive from now on."""
        with self._lock:
            self._held[lease.job_id] = lease

    def remove(self, lease: Lease) -> None:
        """Let `lease` run out; harmless when it is lost already."""
        with self._lock:
            if self._held.get(lease.job_id) == lease:
                del self._held[lease.job_id]

    def check(self, lease: Lease) -> None:
        """Raises LeaseLostError once a beat found that the lease is lost."""
        with self._lock:
            if self._held.get(lease.job_id) != lease:
                raise LeaseLostError(job_id=lease.job_id, role=lease.role, epoch=lease.epoch)

    def clear(self) -> None:
        """Let every lease run out: all work of this process stops at its next check."""
        with self._lock:
            self._held.clear()

    def beat(self) -> None:
        """Extend every lease once. Raises one of DATABASE_AWAY."""
        with self._lock:
            leases = list(self._held.values())
        if not leases:
            return
        with self._engine.begin() as connection:
            kept = extend(connection, leases, self._ttl_s)
        for lease in leases:
            if lease.job_id not in kept:
                LOG.warning("lease lost", extra={"job": lease.job_id, "epoch": lease.epoch})
                self.remove(lease)

    def __enter__(self) -> "HeldLeases":
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread; leases run out by themselves."""
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(self._ttl_s / _BEATS_PER_LEASE):
            try:
                self.beat()
            except DATABASE_AWAY as error:
                # The terminal transaction is fenced, so work may go on in the meantime.
                LOG.warning("no heartbeat", extra={"error": type(error).__name__})
