"""Publishes what this replica can take, and listens to what batchers hold for its pool."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass

from core.clock import Clock
from core.database_time import DatabaseTime
from gpu_consumers.flow_control.grants import Grants, news_items, online_limit, open_limit
from gpu_consumers.flow_control.measured_rate import MeasuredRate
from topics.clients.offset_tracker import Partition
from topics.clients.producer import RecordProducer
from topics.records.catalogue import CAPACITY
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Batch, Capacity, Demand
from topics.tail_readers.tail_reader_thread import decode_records
from topics.tail_readers.topic_tail_reader import TopicTailReader

REPEAT_S = 0.2
"""The state is absolute and repeated, so a lost record idles a GPU for no longer."""

IDLE_REPEAT_S = 1.0
"""The same while nothing runs; batchers take a replica for silent after three times as long."""

_TAIL_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaIdentity:
    """Who publishes, and for which class: a replica of both publishes twice."""

    replica_id: str
    pool: str
    job_class: str
    batch_items: int


class CapacityPublisher:
    """Counts items in and out and publishes grants when they move, and again and again.

    All methods run on the event loop. `concurrency` is asked each time: an engine may adapt it.
    """

    def __init__(
        self,
        identity: ReplicaIdentity,
        producer: RecordProducer,
        concurrency: Callable[[], int],
        clock: Clock,
        *,
        database_time: DatabaseTime | None = None,
        in_danger: Callable[[], bool] = lambda: False,
    ) -> None:
        """Publish nothing until `run`. `database_time` is told what batchers say the time is.

        `in_danger` says whether something here may end the process, and others with it.
        """
        self._database_time = database_time
        self._identity, self._producer = identity, producer
        self._concurrency, self._clock, self._in_danger = concurrency, clock, in_danger
        self._grants = Grants()
        self._epoch = int(clock.wall_s() * 1000) << 12  # room for epochs of this process
        self._partitions: list[int] = []
        self._in_flight = 0
        self._ended = 0
        self._unpublished = 0
        self._news_items = 1  # ended items that are worth telling before the next repetition
        self._rate = MeasuredRate()
        self._limit_override: int | None = None
        self._wake = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Items that arrived and have not ended."""
        return self._in_flight

    @property
    def ended_count(self) -> int:
        """Items that have ended here since the start."""
        return self._ended

    @property
    def items_per_s(self) -> float:
        """The measured rate of this replica; 0 while unknown."""
        return self._rate.items_per_s

    def assigned(self, partitions: list[Partition]) -> None:
        """Partitions moved: a new epoch begins."""
        self._partitions = sorted(number for _, number in partitions)
        self._epoch += 1
        self._grants.next_epoch(self._in_flight)
        self._wake.set()

    def arrived(self, batch: Batch, count: int) -> None:
        """A batch of `count` items was taken over."""
        self._in_flight += count
        self._rate.runs(self._in_flight, now_s=self._clock.monotonic_s())
        if not self._is_ours(batch):
            self._grants.foreign_in_flight += count

    def ended(self, batch: Batch, count: int) -> None:
        """`count` items of `batch` have an outcome or were handed back."""
        self._in_flight -= count
        if not self._in_flight:
            self._rate.rests(now_s=self._clock.monotonic_s())
        self._ended += count
        self._unpublished += count
        if self._is_ours(batch):
            self._grants.finished(batch.batcher_id, count)
        else:
            self._grants.foreign_in_flight = max(0, self._grants.foreign_in_flight - count)
        if self._unpublished >= self._news_items:
            self._wake.set()

    def changed(self) -> None:
        """Something that is published besides the grants has changed."""
        self._wake.set()

    def answered(self, count: int) -> None:
        """Of what ends, `count` items were answered by the engine: only that is throughput."""
        self._rate.answered(count)

    def restrict(self, limit: int | None) -> None:
        """Hold at most `limit` items, 0 for none at all; None lifts the restriction."""
        if limit != self._limit_override:
            self._limit_override = limit
            self._wake.set()

    def demand(self, records: list[ReceivedRecord]) -> None:
        """Take in what batchers hold."""
        for _, demand in decode_records(Demand, records):
            if demand is None:
                continue
            now_s = self._clock.monotonic_s()
            if demand.now_s and self._database_time is not None:
                self._database_time.add_sample(demand.now_s, monotonic_s=now_s)
            if demand.job_class == self._identity.job_class:
                waiting = demand.waiting.get(self._identity.pool, 0)
                known = demand.batcher_id in self._grants.accounts
                self._grants.demand(demand.batcher_id, waiting, now_s=now_s)
                if not known:
                    self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        measured_s = self._clock.monotonic_s()
        while True:
            self._wake.clear()
            try:
                async with asyncio.timeout(REPEAT_S if self._in_flight else IDLE_REPEAT_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            now_s = self._clock.monotonic_s()
            if now_s - measured_s >= REPEAT_S:
                self._rate.look(self._in_flight, concurrency=self._concurrency(), now_s=now_s)
                measured_s = now_s
            self._publish(now_s)

    def withdraw(self) -> None:
        """Say that nothing can be taken any more; the last word before leaving."""
        self._limit_override = 0
        self._publish(self._clock.monotonic_s())

    def _limit(self) -> int:
        if self._limit_override is not None:
            return self._limit_override
        if self._identity.job_class == "interactive":
            return online_limit(self._concurrency(), self.items_per_s)
        return open_limit(self._concurrency(), self.items_per_s, self._identity.batch_items)

    def _publish(self, now_s: float) -> None:
        limit = self._limit()
        self._unpublished = 0
        self._news_items = news_items(limit, self._identity.job_class)
        capacity = Capacity(
            replica_id=self._identity.replica_id,
            epoch=self._epoch,
            pool=self._identity.pool,
            job_class=self._identity.job_class,
            partitions=self._partitions,
            granted=self._grants.granted(limit, now_s=now_s),
            items_per_s=self.items_per_s,
            concurrency=self._concurrency(),
            available=limit > 0 and bool(self._partitions),
            in_danger=self._in_danger(),
        )
        self._producer.send(
            CAPACITY.name,
            encode(capacity),
            partition=0,
            key=f"{self._identity.replica_id}:{self._identity.job_class}".encode(),
            headers=kind_headers(Capacity),
        )

    def _is_ours(self, batch: Batch) -> bool:
        return batch.replica_id == self._identity.replica_id and batch.epoch == self._epoch


def follow_demand(
    tail: TopicTailReader, deliver: Callable[[list[ReceivedRecord]], None], stop: threading.Event
) -> None:
    """Thread body: hand what batchers say to `deliver` until `stop`."""
    tail.seek_to_end(10.0)
    while not stop.is_set():
        if records := tail.poll(_TAIL_POLL_S):
            deliver(records)
    tail.close()
