"""Publishes outcomes, or requeues their items, and waits for the acknowledgements."""

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final
from uuid import UUID

from gpu_consumers.inflight.item_outcomes import outcome_records
from topics.clients.producer import PartitionSender
from topics.records.catalogue import RESULTS
from topics.records.chunks import requeue_chunk, split_into_chunks
from topics.records.codec import Headers, encode, job_headers, kind_headers
from topics.records.partitioner import job_partition
from topics.records.records import Chunk, Item, ItemOutcome, JobRef, Outcomes

_SPACE_CHECK_S: Final = 0.2
"""Time between two looks for space in the producer, while records wait for it."""


class PendingSends:
    """Sends records and waits for the acknowledgement of all. Used on the event loop.

    An outcome waits here, and not in the producer, while its partition of `results` is unavailable
    or has much unacknowledged: the producer keeps space for other partitions.
    """

    def __init__(self, producer: PartitionSender, engine: str = "") -> None:
        """`engine` is the hash of the engine that answers; empty: unknown."""
        self._producer, self._engine = producer, engine
        self._loop = asyncio.get_running_loop()
        self._unacknowledged = 0  # records sent or deferred
        self._by_partition: Counter[int] = Counter()  # the same for outcomes, by partition
        self._deferred: deque[tuple[JobRef, int, bytes]] = deque()
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()

    def send_outcomes(self, job: JobRef, outcomes: list[ItemOutcome]) -> None:
        """Send outcomes of one job to the partition of that job, at once or when it has space."""
        for record in outcome_records(job, outcomes, self._engine):
            self._send_or_defer(record)

    def send_process_ends(self, job: JobRef, process_ends: list[UUID]) -> None:
        """Send which processes items of a job crashed, like outcomes; nothing if none is known."""
        if process_ends:
            self._send_or_defer(Outcomes(job, [], process_ends))

    def requeue_items(
        self, job: JobRef, items: Sequence[Item], positions: Sequence[int | None], job_class: str
    ) -> None:
        """Send items back to the topic of requests; the attempt is not charged.

        `positions` are those of the items in the job's order (`Chunk.position`). A chunk keeps that
        of its first item, so the items come as early as before in the queue of their job.
        """
        first = 0
        for chunk in split_into_chunks(items):
            self.requeue_chunk(Chunk(job, chunk, position=positions[first]), job_class)
            first += len(chunk)

    def requeue_chunk(self, chunk: Chunk, job_class: str) -> None:
        """Send one chunk back to the topic of requests."""
        self._unacknowledged += 1
        requeue_chunk(self._producer, chunk, job_class, partial(self._on_delivery, None))

    def send_deferred(self) -> None:
        """Send what waited for space and has it now."""
        for _ in range(len(self._deferred)):
            job, partition, value = self._deferred.popleft()
            if self._producer.has_space(RESULTS.name, partition):
                self._send(job, partition, value)
            else:
                self._deferred.append((job, partition, value))

    def raise_failure(self) -> None:
        """Raise the first failure, if there is one. Raises DeliveryError."""
        if self._failure is not None:
            raise self._failure

    @property
    def awaited_partitions(self) -> set[int]:
        """The partitions of `results` for which everything waits that is not acknowledged.

        Empty when something else is not acknowledged, or one of them is available.
        """
        waiting = {number for number, count in self._by_partition.items() if count}
        if sum(self._by_partition.values()) < self._unacknowledged or not all(
            self._producer.is_unavailable(RESULTS.name, number) for number in waiting
        ):
            return set()
        return waiting

    async def wait_acknowledged(self) -> None:
        """Return when every record is acknowledged. Raises the first failure."""
        while self._unacknowledged > 0 and self._failure is None:
            self._changed.clear()
            self.send_deferred()
            with suppress(TimeoutError):
                async with asyncio.timeout(_SPACE_CHECK_S if self._deferred else None):
                    await self._changed.wait()
        self.raise_failure()

    def _send_or_defer(self, record: Outcomes) -> None:
        partition = job_partition(record.job.job_id, RESULTS.partition_count)
        self._unacknowledged += 1
        self._by_partition[partition] += 1
        if self._producer.has_space(RESULTS.name, partition):
            self._send(record.job, partition, encode(record))
        else:
            self._deferred.append((record.job, partition, encode(record)))

    def _send(self, job: JobRef, partition: int, value: bytes) -> None:
        headers: Headers = [*kind_headers(Outcomes), *job_headers(job)]
        self._producer.send(
            RESULTS.name,
            value,
            partition=partition,
            key=job.job_id.bytes,
            headers=headers,
            on_delivery=partial(self._on_delivery, partition),
        )

    def _on_delivery(self, partition: int | None, failure: BaseException | None) -> None:
        """Runs on the producer's thread."""
        self._loop.call_soon_threadsafe(self._record_delivery, partition, failure)

    def _record_delivery(self, partition: int | None, failure: BaseException | None) -> None:
        self._unacknowledged -= 1
        if partition is not None:
            self._by_partition[partition] -= 1
        self._failure = self._failure or failure
        self._changed.set()
