"""Tells the autoscaler which pools are about to get work (`backlog`, see `WakeRequest`).

The first call for a pool without replicas is told at once, later ones once a second. Uploads are
told each second until they end: an upload often takes as long as a replica needs to start. One that
takes longer than `UPLOAD_S_MAX`, or is slower than `UPLOAD_BYTES_PER_S`, would keep a replica that
has nothing to do; its batch wakes the pool later.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
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


UPLOAD_S_MAX: Final = 600.0
"""Seconds for which an upload is told."""

UPLOAD_BYTES_PER_S: Final = 64 * 1024
"""Mean speed below which an upload is not told: in `UPLOAD_S_MAX` it would not bring 40 MB."""

UPLOAD_GRACE_S: Final = 10.0
"""Seconds for which the speed of an upload does not count."""


@dataclass(slots=True, eq=False)
class UploadSpeed:
    """How fast an upload that is told arrives. Who receives it adds to `received_bytes`."""

    since_s: float  # monotonic
    received_bytes: int = 0

    def is_told(self, now_s: float) -> bool:
        """Whether the upload brings work soon enough for a replica to start for it now."""
        seconds = now_s - self.since_s
        if seconds >= UPLOAD_S_MAX:
            return False
        return seconds < UPLOAD_GRACE_S or self.received_bytes >= seconds * UPLOAD_BYTES_PER_S


@dataclass(slots=True)
class _PoolWork:
    """What is about to reach a pool."""

    uploads: set[UploadSpeed] = field(default_factory=set)
    new_files: int = 0  # since the last record: stored files that a new batch names
    has_calls: bool = False  # since the last record
    sent_s: float = float("-inf")  # monotonic

    def is_due(self, now_s: float) -> bool:
        if now_s - self.sent_s < INTERVAL_S:
            return False
        return self.has_calls or self.new_files > 0 or self.told_uploads(now_s) > 0

    def told_uploads(self, now_s: float) -> int:
        return sum(upload.is_told(now_s) for upload in self.uploads)


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
        """Note a call for a pool without replicas; tell it at once if the last record is old.

        Only that there are calls is told: what they need is told by the batchers that hold them, so
        refused calls in a loop order no more than one replica.
        """
        if (work := self._work(pool)) is not None:
            work.has_calls = True
            self._send_if_due(pool, work)

    def note_batch(self, pool: str) -> None:
        """Count a batch over a file that is stored already, as an upload that has just ended."""
        if (work := self._work(pool)) is not None:
            work.new_files += 1
            self._send_if_due(pool, work)

    @contextmanager
    def uploading(self, pool: str) -> Iterator[UploadSpeed]:
        """Tell of an upload for a pool, at once and each second, until the block ends."""
        upload = UploadSpeed(self._clock.monotonic_s())
        work = self._work(pool)
        if work is None:
            yield upload
            return
        work.uploads.add(upload)
        self._send_if_due(pool, work)
        try:
            yield upload
        finally:
            work.uploads.discard(upload)

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
        uploads, calls = work.told_uploads(now_s) + work.new_files, int(work.has_calls)
        record = WakeRequest(self._api_id, pool, self._clock.wall_s(), uploads, calls)
        work.sent_s, work.new_files, work.has_calls = now_s, 0, False
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
