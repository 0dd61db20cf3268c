"""Fakes around a replica under test: its producer, attempt log, consumer, engines and delays."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from core.errors import EngineDeadError, EngineOutOfMemoryError, PoolBusyError, PoolUnavailableError
from gpu_consumers.engines.engine import EmitEvent, EngineAnswer, OnAnswer, UsageMeter
from topics.clients.producer import OnDelivery
from topics.records.attempts import AttemptUnit, BatchAttempt
from topics.records.catalogue import RESULTS
from topics.records.codec import Headers, decode, kind_of
from topics.records.received_record import ReceivedRecord
from topics.records.records import (
    Batch,
    Capacity,
    Chunk,
    ItemOutcome,
    Outcomes,
    ReplicaGrants,
    Replies,
    Reply,
    ReplyEnd,
    UsageReport,
)


async def run_loop(iterations: int = 20) -> None:
    """Run the event loop until nothing is ready but what waits for another event."""
    for _ in range(iterations):
        await asyncio.sleep(0)


class RecordingProducer:
    """Decodes records and acknowledges them at once, except those of `unacknowledged_kind`."""

    def __init__(self) -> None:
        self.unacknowledged_kind: str | None = None
        self.unavailable: set[int] = set()  # partitions of `results` that acknowledge nothing
        self.is_full = False  # the unavailable partitions accept nothing
        self._unacknowledged: list[OnDelivery] = []
        self.batches: list[tuple[int, Batch]] = []  # partition and requeued batch
        self.outcomes: list[ItemOutcome] = []
        self.engines: set[str] = set()  # that ran items, by their outcomes
        self.process_ends: list[tuple[UUID, UUID]] = []  # job and process that its items crashed
        self.bills: list[ItemOutcome] = []  # of connection-bound calls
        self.requeued: list[Chunk] = []
        self.capacities: list[Capacity] = []
        self.usage: list[UsageReport] = []
        self.grants: list[ReplicaGrants] = []
        self.without_space: set[str] = set()  # topics
        self.replies: list[Reply] = []
        self.permission_requests: list[UUID] = []

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        partition: int,
        key: bytes | None = None,
        headers: Headers | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        kind = kind_of(headers)
        if kind == "replies":
            replies = decode(Replies, value, headers)
            self.replies += replies.replies
            self.permission_requests += replies.questions
        elif kind == "outcomes":
            outcomes = decode(Outcomes, value, headers)
            self.engines.add(outcomes.engine)
            is_bill = outcomes.job.call is not None and not outcomes.job.call.durable
            (self.bills if is_bill else self.outcomes).extend(outcomes.items)
            self.process_ends += [(outcomes.job.job_id, end) for end in outcomes.process_ends]
        elif kind == "chunk":
            self.requeued.append(decode(Chunk, value, headers))
        elif kind == "capacity":
            self.capacities.append(decode(Capacity, value, headers))
        elif kind == "usage":
            self.usage.append(decode(UsageReport, value, headers))
        elif kind == "grants":
            self.grants.append(decode(ReplicaGrants, value, headers))
        elif kind == "batch":
            self.batches.append((partition, decode(Batch, value, headers)))
        if on_delivery is None:
            return
        is_unavailable = topic == RESULTS.name and partition in self.unavailable
        if kind == self.unacknowledged_kind or is_unavailable:
            self._unacknowledged.append(on_delivery)
        else:
            on_delivery(None)

    async def send_and_wait(self, topic: str, value: bytes | None, **options: Any) -> None:
        self.send(topic, value, **options)

    def has_space(self, topic: str, partition: int) -> bool:
        is_full = self.is_full and self.is_unavailable(topic, partition)
        return not is_full and topic not in self.without_space

    def is_unavailable(self, topic: str, partition: int) -> bool:
        return topic == RESULTS.name and partition in self.unavailable

    def acknowledge(self) -> None:
        """Acknowledge the records that were kept back."""
        self.unavailable.clear()
        for on_delivery in self._unacknowledged:
            on_delivery(None)
        self._unacknowledged.clear()

    @property
    def requeued_indexes(self) -> list[int]:
        return [item.index for chunk in self.requeued for item in chunk.items]

    @property
    def pieces(self) -> list[bytes]:
        return [piece for reply in self.replies for piece in reply.pieces]

    @property
    def ends(self) -> list[ReplyEnd]:
        return [reply.end for reply in self.replies if reply.end is not None]

    @property
    def statuses(self) -> list[int]:
        return [end.status_code for end in self.ends]


class MemoryAttemptLog:
    """The attempts of batches and calls; survives a replica, as the topic does."""

    def __init__(self) -> None:
        self.latest: dict[UUID, BatchAttempt] = {}
        self.recorded: list[BatchAttempt] = []
        self._available = asyncio.Event()
        self._available.set()

    @property
    def is_unavailable(self) -> bool:
        return not self._available.is_set()

    @is_unavailable.setter
    def is_unavailable(self, is_unavailable: bool) -> None:
        """Make the topic acknowledge nothing, or what waits and everything after it."""
        if is_unavailable:
            self._available.clear()
        else:
            self._available.set()

    def add(self, batch: Batch, *units: AttemptUnit, life: int = 1, is_running: bool) -> None:
        """Add the last attempt of a previous owner."""
        self.latest[batch.batch_id] = BatchAttempt(batch.batch_id, life, [*units], is_running)

    async def read_attempt(self, batch_id: UUID, generation: int) -> BatchAttempt | None:
        await asyncio.sleep(0)
        return self.latest.get(batch_id)

    async def read_latest(self) -> list[BatchAttempt]:
        await asyncio.sleep(0)
        return [*self.latest.values()]

    async def record_attempt(self, attempt: BatchAttempt) -> None:
        await asyncio.sleep(0)
        self.latest[attempt.batch_id] = attempt
        self.recorded.append(attempt)
        await self._available.wait()

    async def record_unless_unavailable(self, attempt: BatchAttempt) -> bool:
        writing = asyncio.ensure_future(self.record_attempt(attempt))
        while not writing.done() and not self.is_unavailable:
            await asyncio.wait([writing], timeout=0.01)
        return writing.done()

    async def delete_attempt(self, batch_id: UUID) -> None:
        await asyncio.sleep(0)
        self.latest.pop(batch_id, None)


class FakeConsumer:
    """Records the offsets that are reported as finished; they count as committed."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def mark_finished(self, record: ReceivedRecord, generation: int) -> None:
        self.offsets.append(record.offset)

    def is_committed(self, record: ReceivedRecord) -> bool:
        return record.offset in self.offsets


class FaultyEngine:
    """Executes bulk items; a body selects the fault of its item.

    `crash` ends the process, `oom` and `memory` exceed the memory, as do more than `items_max`
    items; `hold` waits for `gate`; `busy` is refused.
    """

    concurrency, headroom = 64, 0

    def __init__(self, items_max: int = 1000) -> None:
        self.items_max = items_max
        self.is_unavailable = False
        self.executed: list[list[bytes]] = []
        self.running = 0
        self.running_max = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.holds = asyncio.Event()  # set when an item waits for the gate

    async def execute(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer, adapter: str = ""
    ) -> None:
        self.executed.append([*bodies])
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        try:
            await asyncio.sleep(0)
            if self.is_unavailable:
                raise PoolUnavailableError
            if len(bodies) > self.items_max:
                raise EngineOutOfMemoryError
            for index, body in enumerate(bodies):
                if body == b"hold":
                    self.holds.set()
                    await self.gate.wait()
                if body == b"busy":
                    continue
                if body == b"oom":
                    raise EngineOutOfMemoryError
                if body == b"memory":
                    raise MemoryError
                if body == b"crash":
                    raise EngineDeadError
                finished(index, EngineAnswer(200, b"{}"))
            if b"busy" in bodies:
                raise PoolBusyError
        finally:
            self.running -= 1


class GatedEngine:
    """Serves calls: emits one piece, waits for `gate`, emits another and answers."""

    concurrency, headroom = 8, 2

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.is_unavailable = self.is_dead = self.is_full = False
        self.counts_whole_calls = False
        self.running = 0
        self.served = 0
        self.served_bodies: list[bytes] = []
        self.answer = EngineAnswer(200, b"", input_tokens=3, output_tokens=2)
        self.piece = b"1"

    async def serve(
        self,
        endpoint: str,
        body: bytes,
        emit: EmitEvent | None,
        meter: UsageMeter,
        adapter: str = "",
    ) -> EngineAnswer:
        if self.is_full:
            await self.gate.wait()
        meter.on_start()
        if self.is_unavailable:
            raise PoolUnavailableError
        if self.is_dead:
            raise EngineDeadError
        self.served += 1
        self.served_bodies.append(body)
        self.running += 1
        try:
            if emit is not None:
                emit(self.piece)
            if emit is not None or self.counts_whole_calls:
                meter.with_usage = lambda answer: replace(answer, input_tokens=3, output_tokens=7)
            await self.gate.wait()
            if emit is not None:
                emit(b"2")
        finally:
            self.running -= 1
        return self.answer


class SuspectDelay:
    """Replaces the sleep of `DELAY_S` seconds by an event."""

    DELAY_S = 77.0

    def __init__(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.has_started, self._end, self._sleep = asyncio.Event(), asyncio.Event(), sleep

    async def sleep(self, seconds: float) -> None:
        if seconds != self.DELAY_S:
            return await self._sleep(seconds)
        self.has_started.set()
        await self._end.wait()
        return None

    async def end_when(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await self._sleep(0)
        self._end.set()
