"""Publishes on `capacity` that this replica loads its model, or has refused it.

Such a record grants nothing and counts for nothing: operators see it, and nobody else. A record of
a serving replica replaces it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

from topics.clients.producer import RecordSender
from topics.errors import DeliveryError
from topics.records.catalogue import CAPACITY
from topics.records.codec import encode, kind_headers
from topics.records.eligibility import LoadState
from topics.records.records import Capacity, LoadedModel

REPEAT_S: Final = 1.0
"""Interval of the records while the event loop is not blocked; vLLM blocks it while it loads."""

_FLUSH_S: Final = 5.0


class FlushedSender(RecordSender, Protocol):
    """Sends records, and waits until they are acknowledged."""

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when all are acknowledged. Raises DeliveryError."""


class LoadingState:
    """The state of a replica that does not serve yet. Used on the event loop."""

    def __init__(
        self,
        producer: FlushedSender,
        replica_id: str,
        pool: str,
        job_classes: Sequence[str],
        version: str,
    ) -> None:
        """`version` is that of the model; empty for one without a version by content."""
        self._producer, self._replica_id, self._pool = producer, replica_id, pool
        self._job_classes, self._version = job_classes, version
        self._state = LoadState.LOADING

    @contextlib.asynccontextmanager
    async def published(self) -> AsyncIterator[None]:
        """Publish the state repeatedly during the block, at once before anything blocks."""
        self._publish(flushes=True)
        repeating = asyncio.create_task(self._repeat())
        try:
            yield
        finally:
            repeating.cancel()

    def refuse(self, _reason: object = None) -> None:
        """Publish from now on that this replica has refused its model."""
        self._state = LoadState.REFUSED
        self._publish(flushes=True)

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(REPEAT_S)
            self._publish(flushes=False)

    def _publish(self, *, flushes: bool) -> None:
        for job_class in self._job_classes:
            capacity = Capacity(
                replica_id=self._replica_id,
                epoch=0,  # below that of any serving replica
                pool=self._pool,
                job_class=job_class,
                partitions=[],
                granted={},
                items_per_s=0.0,
                concurrency=0,
                available=False,
                models=[LoadedModel(self._version, self._state.value)],
            )
            self._producer.send(
                CAPACITY.name,
                encode(capacity),
                partition=0,
                key=f"{self._pool}:{self._replica_id}:{job_class}".encode(),
                headers=kind_headers(Capacity),
            )
        if flushes:
            with contextlib.suppress(DeliveryError):  # it only informs
                self._producer.flush(_FLUSH_S)
