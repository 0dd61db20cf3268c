"""A host whose processes are killed, in virtual time, with the broker and batcher around it.

A batch lies on the host's partition from its dispatch until its offset is finished. The next
process of the host gets what lies there as redelivered, and assesses the host by earlier ends.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast
from uuid import UUID

from msgspec.structs import replace

from core.errors import EngineDeadError
from core.outcomes import Outcome
from gpu_consumers.engines.engine import EngineAnswer, OnAnswer
from gpu_consumers.quarantine.host_health import HostHealth
from gpu_consumers.quarantine.host_history import assess_host, ends_after
from tests.support.virtual_time import VirtualTimeLoop, run_in_virtual_time
from tests.unit.gpu_consumers.fakes import FaultyEngine, MemoryAttemptLog, RecordingProducer
from tests.unit.gpu_consumers.replicas import BulkReplica, job_ref
from topics.records.attempts import BatchAttempt, ProcessEnd, ReplicaProcess
from topics.records.records import Batch, Chunk, Item, ItemOutcome

CONCURRENCY = 16
POISON = b"crash"
SUSPECT_DELAY_S = 1.0
_POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Work:
    """Items of one job, and how their host fares."""

    item_count: int
    item_s: float
    restart_s: float
    kills: Sequence[float] = ()
    poison: frozenset[int] = frozenset()
    batch_items: int = 8
    crash_budget: int | None = None  # process ends, of which one more closes the job

    def batches(self) -> list[Batch]:
        """Return the batches, each with its number as its id."""
        items = [
            Item(index, f"c{index}", POISON if index in self.poison else b"{}", 1)
            for index in range(self.item_count)
        ]
        return [
            Batch(UUID(int=number + 1), "b", [Chunk(job_ref(1), items[first:][: self.batch_items])])
            for number, first in enumerate(range(0, self.item_count, self.batch_items))
        ]


@dataclass(frozen=True)
class HostRun:
    """What happened until every batch was finished."""

    took_s: float
    deaths: int
    outcomes: list[ItemOutcome]
    executions: dict[int, int]  # of each poison item
    process_ends: int  # processes that were reported as crashed by items of the job

    @property
    def failed(self) -> set[int]:
        return {o.index for o in self.outcomes if o.outcome is Outcome.FAILED}

    @property
    def succeeded(self) -> set[int]:
        return {o.index for o in self.outcomes if o.outcome is Outcome.SUCCEEDED}


class _TimedEngine(FaultyEngine):
    """Runs `CONCURRENCY` items at once, each for `item_s`; poison ends the process."""

    concurrency = CONCURRENCY

    def __init__(self, item_s: float) -> None:
        super().__init__()
        self._item_s, self._slots = item_s, asyncio.Semaphore(CONCURRENCY)

    async def execute(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer, adapter: str = ""
    ) -> None:
        async def run_item(index: int, body: bytes) -> None:
            async with self._slots:
                await asyncio.sleep(self._item_s / 2)
                if body == POISON:
                    raise EngineDeadError
                await asyncio.sleep(self._item_s / 2)
                finished(index, EngineAnswer(200, b"{}"))

        tasks = [asyncio.create_task(run_item(*item)) for item in enumerate(bodies)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()


class _MortalProducer(RecordingProducer):
    """The producer of one process: it sends nothing after the process has ended."""

    def __init__(self, log: RecordingProducer) -> None:
        super().__init__()
        self.outcomes, self.requeued = log.outcomes, log.requeued
        self.process_ends = log.process_ends
        self.is_dead = False

    def send(self, *args: object, **options: object) -> None:
        if not self.is_dead:
            super().send(*args, **options)  # type: ignore[arg-type]


class _MortalAttemptLog(MemoryAttemptLog):
    """The attempt log of one process: it writes nothing after the process has ended."""

    def __init__(self, log: MemoryAttemptLog) -> None:
        super().__init__()
        self.latest, self.recorded, self.is_dead = log.latest, log.recorded, False

    async def record_attempt(self, attempt: BatchAttempt) -> None:
        if not self.is_dead:
            await super().record_attempt(attempt)


@dataclass
class KilledHost:
    """Runs processes one after the other; each gets the batches that the last did not finish."""

    work: Work
    name: str = "host-a"
    log: RecordingProducer = field(default_factory=RecordingProducer)
    attempts: MemoryAttemptLog = field(default_factory=MemoryAttemptLog)
    finished: set[int] = field(default_factory=set)
    deaths: int = 0
    ends: list[ProcessEnd] = field(default_factory=list)
    _dispatched: int = 0  # offsets below lie on the partition
    _replica: BulkReplica | None = None

    async def run(self) -> HostRun:
        """Run until every batch is finished, or the job is closed."""
        self._batches, loop = self.work.batches(), asyncio.get_running_loop()
        for at_s in self.work.kills:
            loop.call_at(at_s, self._kill)
        async with asyncio.timeout(4 * 3600):
            while len(self.finished) < len(self._batches) and not self._is_job_closed():
                await asyncio.sleep(self.work.restart_s)
                await self._run_process()
        executions = {
            index: sum(attempt.is_running for attempt in self._attempts_of(index))
            for index in self.work.poison
        }
        ends = len(set(self.log.process_ends))
        return HostRun(loop.time(), self.deaths, self.log.outcomes, executions, ends)

    def _is_job_closed(self) -> bool:
        budget = self.work.crash_budget
        return budget is not None and len(set(self.log.process_ends)) > budget

    def _attempts_of(self, index: int) -> Iterable[BatchAttempt]:
        position, number = index % self.work.batch_items, index // self.work.batch_items
        for attempt in self.attempts.recorded:
            if attempt.batch_id == UUID(int=number + 1) and attempt.units:
                unit = attempt.units[0]
                if unit.first <= position < unit.first + unit.count:
                    yield attempt

    def _kill(self) -> None:
        if self._replica is not None and not self._replica.tasks.failed.done():
            self._replica.tasks.failed.set_exception(EngineDeadError())

    async def _run_process(self) -> None:
        clock = cast(VirtualTimeLoop, asyncio.get_running_loop())
        verdict = assess_host(self.ends)
        host = HostHealth(host_id=self.name, verdict=verdict)
        await asyncio.sleep(verdict.rest_s)
        producer, attempts = _MortalProducer(self.log), _MortalAttemptLog(self.attempts)
        self._replica = replica = BulkReplica(
            producer,
            attempts,
            _TimedEngine(self.work.item_s),
            suspect_delay_s=SUSPECT_DELAY_S,
            clock=clock,
            host=host,
        )
        process = ReplicaProcess("n", 1, "p", clock.time(), self.ends, ready_s=clock.time())
        suspects = set(range(self._dispatched)) - self.finished
        for offset in sorted(suspects):
            replica.start_batch(self._batches[offset], is_redelivered=True, offset=offset)
        replica.tasks.start(replica.worker.publish_early())
        while not replica.tasks.failed.done() and len(self.finished) < len(self._batches):
            if self._is_job_closed():
                break
            self.finished |= set(replica.consumer.offsets)
            self._dispatch(replica, suspects - self.finished)
            await asyncio.wait([replica.tasks.failed], timeout=_POLL_S)
        producer.is_dead = attempts.is_dead = True
        self._replica = None
        if replica.tasks.failed.done():
            replica.tasks.failed.exception()
            self.deaths += 1
            has_proven = clock.time() - process.ready_s >= verdict.long_life_s
            own = [a for a in self.attempts.latest.values() if a.process_id == host.process_id]
            ended_s = clock.time() + self.work.restart_s
            process = replace(process, has_served=host.has_served.is_set(), has_proven=has_proven)
            self.ends = ends_after(process, own, now_s=ended_s)
        replica.tasks.cancel_all()
        await replica.tasks.wait_all(1)

    def _dispatch(self, replica: BulkReplica, suspects: set[int]) -> None:
        """Spend the replica's credit, a quarter of which is for new batches."""
        limit = 2 * CONCURRENCY
        room = max(limit // 4, limit - self._item_count(suspects))
        room -= self._item_count(set(range(self._dispatched)) - suspects - self.finished)
        while self._dispatched < len(self._batches):
            room -= self._item_count({self._dispatched})
            if room < 0:
                return
            replica.start_batch(self._batches[self._dispatched], offset=self._dispatched)
            self._dispatched += 1

    def _item_count(self, offsets: Iterable[int]) -> int:
        return sum(len(self._batches[offset].parts[0].items) for offset in offsets)


def run_host(work: Work) -> HostRun:
    """Run the work on a host in virtual time."""
    logging.disable(logging.CRITICAL)
    try:
        return run_in_virtual_time(KilledHost(work).run())
    finally:
        logging.disable(logging.NOTSET)
