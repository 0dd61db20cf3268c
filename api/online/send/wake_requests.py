"""Tells the autoscaler which pools are about to get work (`backlog`, see `WakeRequest`).

The first call for a pool without replicas is told at once, later ones once a second. Uploads are
told each second until they end: an upload often takes as long as a replica needs to start.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from core.clock import Clock
from topics.clients.producer import PartitionSender
from topics.errors import DeliveryError
from topics.records.catalogue import BACKLOG
from topics.records.codec import encode, kind_headers
from topics.records.records import Record
from topics.records.scaling import WakeRequest

INTERVAL_S: Final = 1.0
"""Least time between two records of a pool."""

_TICK_S: Final = 0.25

POOLS_MAX: Final = 1_000
"""Pools with uploads or calls at a time; further ones are not told."""


@dataclass(slots=True)
class _PoolWork:
    """What is about to reach a pool."""

    uploads: int = 0
    new_files: int = 0  # since the last record: stored files that a new batch names
    calls: int = 0  # since the last record
    sent_s: float = float("-inf")  # monotonic

    def is_due(self, now_s: float) -> bool:
        has_work = self.uploads or self.new_files or self.calls
        return bool(has_work) and now_s - self.sent_s >= INTERVAL_S


class WakeRequests:
    """Counts the work of one process and sends it. Used on the event loop."""

    def __init__(
        self,
        api_id: str,
        clock: Clock,
        send: Callable[[bytes, Record], None],
        *,
        is_needed: Callable[[], bool],
    ) -> None:
        """Nothing is sent while `is_needed()` is False: no autoscaler reads it.

        `send` gets the key and the record.
        """
        self._api_id, self._clock, self._send = api_id, clock, send
        self._is_needed = is_needed
        self._pools: dict[str, _PoolWork] = {}

    def note_call(self, pool: str) -> None:
        """Count a call for a pool without replicas; tell it at once if the last record is old."""
        if (work := self._work(pool)) is not None:
            work.calls += 1
            self._send_if_due(pool, work)

    def note_batch(self, pool: str) -> None:
        """Count a batch over a file that is stored already, as an upload that has just ended."""
        if (work := self._work(pool)) is not None:
            work.new_files += 1
            self._send_if_due(pool, work)

    @contextmanager
    def uploading(self, pool: str) -> Iterator[None]:
        """Tell of an upload for a pool, at once and each second, until the block ends."""
        work = self._work(pool)
        if work is None:
            yield
            return
        work.uploads += 1
        self._send_if_due(pool, work)
        try:
            yield
        finally:
            work.uploads -= 1

    async def run(self) -> None:
        """Send what is due until cancelled."""
        while True:
            self.send_due()
            await asyncio.sleep(_TICK_S)

    def send_due(self) -> None:
        """Send what is due, and forget pools without work."""
        now_s = self._clock.monotonic_s()
        for pool, work in list(self._pools.items()):
            if work.is_due(now_s):
                self._send_if_due(pool, work)
            elif not work.uploads and now_s - work.sent_s >= INTERVAL_S:
                del self._pools[pool]

    def _work(self, pool: str) -> _PoolWork | None:
        work = self._pools.get(pool)
        if work is None and len(self._pools) < POOLS_MAX and self._is_needed():
            work = self._pools[pool] = _PoolWork()
        return work

    def _send_if_due(self, pool: str, work: _PoolWork) -> None:
        now_s = self._clock.monotonic_s()
        if not work.is_due(now_s):
            return
        uploads = work.uploads + work.new_files
        record = WakeRequest(self._api_id, pool, self._clock.wall_s(), uploads, work.calls)
        work.sent_s, work.new_files, work.calls = now_s, 0, 0
        self._send(f"{self._api_id}:{pool}".encode(), record)


def send_backlog(sender: PartitionSender, key: bytes, record: Record) -> None:
    """Send a record to `backlog`, or drop it while the partition takes none: it is repeated."""
    if not sender.has_space(BACKLOG.name, 0):
        return
    with suppress(DeliveryError):
        sender.send(
            BACKLOG.name,
            encode(record),
            partition=0,
            key=key,
            headers=kind_headers(type(record)),
        )
