"""Publishes the bulk work without a result, of the whole installation, each second."""

from collections.abc import Callable
from typing import Final

import sqlalchemy as sa

from core.clock import Clock
from jobs.expansion.backlog import REPEAT_S, BacklogSnapshot, PublishedPools
from jobs.expansion.load_cache import LoadCache
from jobs.validation.validating_files import find_validating_files
from registry.models import list_served_pools
from storage.postgres.engines import autocommit
from topics.clients.producer import PartitionSender
from topics.records.catalogue import BACKLOG
from topics.records.codec import encode, kind_headers
from topics.records.scaling import Backlog

INTERVAL_S: Final = 1.0
"""From the start of one publication to that of the next."""

_JITTER: Final = 0.1  # of the interval, so that several processes do not publish at once
_TIME_SHARE_MAX: Final = 0.2  # of the time, with any number of open batches


class BacklogPublisher:
    """Publishes a record for each pool with work, and now and then for each that is served.

    A served pool without work is so known to an autoscaler before its first work. Used by one
    thread. The loads are locked only while their sums are copied; the records are built after it.
    """

    def __init__(
        self,
        engine: sa.Engine,
        loads: LoadCache,
        sender: PartitionSender,
        clock: Clock,
        intake_id: str,
        draw: Callable[[], float],
    ) -> None:
        """`intake_id` names this process in its records. `draw` returns a number from 0 to 1."""
        self._engine, self._loads, self._sender = engine, loads, sender
        self._clock, self._intake_id, self._draw = clock, intake_id, draw
        self._published = PublishedPools()
        self._served: list[str] = []
        self._served_due_s = clock.monotonic_s()
        self._started_s = self._ended_s = clock.monotonic_s()

    def run_once(self) -> None:
        """Publish the newest state. Raises DeliveryError and one of DATABASE_UNAVAILABLE."""
        self._started_s = self._clock.monotonic_s()
        self._read_served(self._started_s)
        snapshot = self.snapshot()
        for pool in self._published.due(snapshot.pools, self._started_s, self._served):
            if not self._sender.has_space(BACKLOG.name, 0):
                break  # newer records will be sent
            self._send(snapshot.record(self._intake_id, pool))
        self._ended_s = self._clock.monotonic_s()

    def pause_s(self) -> float:
        """Return how long to wait before the next publication, in seconds."""
        took_s = max(0.0, self._ended_s - self._started_s)
        interval_s = INTERVAL_S * (1 - _JITTER * self._draw())
        return max(interval_s - took_s, took_s / _TIME_SHARE_MAX - took_s, 0.0)

    def snapshot(self) -> BacklogSnapshot:
        """Refresh the loads and return their work. Raises one of DATABASE_UNAVAILABLE."""
        with autocommit(self._engine) as connection:
            validating = find_validating_files(connection)
        with self._loads.current() as loads:
            now_s, backlog, epochs = loads.openings.now_s, loads.backlog.copy(), loads.epochs()
        return BacklogSnapshot(now_s, backlog.by_octave(now_s), epochs, validating)

    def _read_served(self, now_s: float) -> None:
        if now_s < self._served_due_s:
            return
        with self._engine.begin() as connection:
            self._served = list_served_pools(connection)
        self._served_due_s = now_s + REPEAT_S

    def _send(self, record: Backlog) -> None:
        self._sender.send(
            BACKLOG.name,
            encode(record),
            partition=0,
            key=f"{record.intake_id}:{record.pool}".encode(),
            headers=kind_headers(Backlog),
        )
