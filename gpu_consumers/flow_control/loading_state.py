"""Publishes on `capacity` that this replica loads its model, has refused it, or sleeps.

Such a record grants nothing and counts for nothing: operators see it, and nobody else. A record of
a serving replica replaces it.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

from gpu_consumers.flow_control.replica_state import Lifecycle, PublishedState
from gpu_consumers.weights.errors import ModelRefusedError
from topics.clients.producer import RecordSender
from topics.errors import DeliveryError
from topics.records.catalogue import CAPACITY
from topics.records.codec import encode, kind_headers
from topics.records.eligibility import LoadState
from topics.records.records import Capacity, LoadedModel

REPEAT_S: Final = 1.0
"""Interval of the records. Readers drop a replica that is silent for three times that."""

_FLUSH_S: Final = 5.0


class FlushedSender(RecordSender, Protocol):
    """Sends records, from any thread, and waits until they are acknowledged."""

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when all are acknowledged. Raises DeliveryError."""


class LoadingState:
    """The state of a replica that does not serve yet."""

    def __init__(
        self,
        producer: FlushedSender,
        replica_id: str,
        pool: str,
        job_classes: Sequence[str],
        version: str,
        state: PublishedState | None = None,
    ) -> None:
        """`version` is that of the model; empty for one without a version by content.

        `state` is that of the replica, whose changes are published at once; None: it starts.
        """
        self._state = state or PublishedState(lifecycle=Lifecycle.STARTING)
        self._producer, self._replica_id, self._pool = producer, replica_id, pool
        self._job_classes = job_classes
        self._lock = threading.Lock()  # records of an earlier state never follow those of a later
        self._model = LoadedModel(version, LoadState.LOADING.value)

    @contextlib.asynccontextmanager
    async def published(self) -> AsyncIterator[None]:
        """Publish the state at once and repeatedly during the block; nothing of it follows.

        A thread repeats it: vLLM blocks the event loop for minutes while it loads.
        """
        # Not awaited: the first acknowledgement takes half a second, and the load follows.
        self._publish()
        ended = threading.Event()
        thread = threading.Thread(
            target=self._repeat, args=(ended,), name="loading-state", daemon=True
        )
        thread.start()
        self._state.on_change.append(self._publish_change)
        try:
            yield
        finally:
            self._state.on_change.remove(self._publish_change)
            ended.set()
            await asyncio.to_thread(thread.join)

    def refuse(self, refusal: ModelRefusedError) -> None:
        """Publish from now on that this replica has refused its model, and why."""
        with self._lock:
            self._model = LoadedModel(
                self._model.version, LoadState.REFUSED.value, reason=refusal.reason.value
            )
        self._publish()
        with contextlib.suppress(DeliveryError):
            self._producer.flush(_FLUSH_S)

    def _publish_change(self) -> None:
        self._publish()

    def _repeat(self, ended: threading.Event) -> None:
        while not ended.wait(REPEAT_S):
            self._publish()

    def _publish(self) -> None:
        with contextlib.suppress(DeliveryError), self._lock:  # it only informs
            self._send()

    def _send(self) -> None:
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
                models=[self._model],
                lifecycle=self._state.lifecycle.value,
                gpu_type=self._state.place.gpu_type,
                zone=self._state.place.zone,
                spot=self._state.place.is_spot,
                leaves_at_s=self._state.leaves_at_s,
            )
            self._producer.send(
                CAPACITY.name,
                encode(capacity),
                partition=0,
                key=f"{self._pool}:{self._replica_id}:{job_class}".encode(),
                headers=kind_headers(Capacity),
            )
