"""The lane of batches with an engine and a log that a test holds in its hands."""

import asyncio
from collections.abc import Sequence
from typing import cast
from uuid import UUID, uuid4

from core.clock import SystemClock
from core.database_time import DatabaseTime
from core.errors import (
    EngineDeadError,
    EngineOutOfMemoryError,
    PoolBusyError,
    PoolUnavailableError,
)
from core.states import CloseReason
from core.supervised_tasks import SupervisedTasks
from gpu_consumers.batch_consumer import BatchConsumer
from gpu_consumers.bulk.batch_execution import BatchExecution, ExecutionParts
from gpu_consumers.cancellation.liveness import Wanted
from gpu_consumers.class_workers import BulkLane
from gpu_consumers.engines.engine import Answer, Engine, Finished
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher, ReplicaIdentity
from gpu_consumers.flow_control.pool_health import PoolHealth
from gpu_consumers.inflight.delivered_batch import Delivery
from gpu_consumers.quarantine.attempt_log import AttemptLog
from gpu_consumers.quarantine.crash_attribution import Trials
from gpu_consumers.quarantine.locks import Turns
from gpu_consumers.quarantine.quarantine import Isolation
from storage.objects.object_store import ObjectStore
from tests.unit.gpu_consumers.attempts import Attempts
from topics.clients.producer import LogProducer, OnDelivery
from topics.records.codec import Headers, decode, kind_of
from topics.records.received import Received
from topics.records.records import (
    Batch,
    Capacity,
    Chunk,
    Item,
    ItemOutcome,
    JobControl,
    JobRef,
    Outcomes,
    Unit,
)
from topics.tail_readers.job_controls import JobControls

CRASHES_MAX = 3


class Log:
    """Takes records and acknowledges them at once."""

    def __init__(self) -> None:
        self.outcomes: list[ItemOutcome] = []
        self.put_back: list[int] = []
        self.capacities: list[Capacity] = []

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
        if kind == "outcomes":
            self.outcomes += decode(Outcomes, value, headers).items
        elif kind == "capacity":
            self.capacities.append(decode(Capacity, value, headers))
        elif kind == "chunk":
            self.put_back += [item.index for item in decode(Chunk, value, headers).items]
        if on_delivery is not None:
            on_delivery(None)


class TouchyEngine:
    """Dies of `crash`, has no memory for `oom` or for more than `room` items; `hold` stops it.

    It is too busy for `busy`, for as long as it is asked.
    """

    concurrency, headroom = 64, 0

    def __init__(self, room: int = 1000) -> None:
        self.room = room
        self.away = False
        self.runs: list[list[bytes]] = []
        self.running = 0
        self.together_max = 0
        self.hold = asyncio.Event()
        self.hold.set()
        self.holds = asyncio.Event()

    async def execute(self, endpoint: str, bodies: Sequence[bytes], finished: Finished) -> None:
        self.runs.append([*bodies])
        self.running += 1
        self.together_max = max(self.together_max, self.running)
        try:
            await asyncio.sleep(0)
            if self.away:
                raise PoolUnavailableError
            if len(bodies) > self.room:
                raise EngineOutOfMemoryError
            for index, body in enumerate(bodies):
                if body == b"hold":
                    self.holds.set()
                    await self.hold.wait()
                if body == b"busy":
                    continue
                if body == b"oom":
                    raise EngineOutOfMemoryError
                if body == b"memory":
                    raise MemoryError
                if body == b"crash":
                    raise EngineDeadError
                finished(index, Answer(200, b"{}"))
            if b"busy" in bodies:
                raise PoolBusyError
        finally:
            self.running -= 1


class Open:
    """Knows which jobs are closed, and what else their owners changed."""

    def __init__(self) -> None:
        self.closed: set[UUID] = set()
        self.controls: dict[UUID, JobControl] = {}
        self.ended: Exception | None = None  # the news have

    def newer(self, job: JobRef) -> JobControl | None:
        if self.ended is not None:
            raise self.ended
        if job.job_id in self.closed:
            return JobControl(job.job_id, 9, closed=CloseReason.CANCELLED)
        return self.controls.get(job.job_id)


class Finishes:
    """Takes the place of the consumer: which deliveries were reported."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def finished(self, record: Received, generation: int) -> None:
        self.offsets.append(record.offset)

    def is_committed(self, record: Received) -> bool:
        return record.offset in self.offsets


class Life:
    """A replica from its start to its end; log and attempts go over to the next."""

    def __init__(
        self,
        log: Log,
        attempts: Attempts,
        engine: TouchyEngine,
        objects: ObjectStore | None = None,
        *,
        rest_s: float = 0,
        trials: Trials | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.log, self.attempts, self.engine = log, attempts, engine
        self.closed, self.consumer = Open(), Finishes()
        self.time = DatabaseTime(max)
        self.tasks = SupervisedTasks(loop)
        identity = ReplicaIdentity(replica_id="r", pool="p", job_class="bulk", batch_items=100)
        producer = cast(LogProducer, log)
        turns, self.trials = Turns(), trials or Trials()
        self.capacity = CapacityPublisher(
            identity,
            producer,
            lambda: 64,
            SystemClock(),
            in_danger=self.trials.in_danger,
        )
        self.trials.on_danger.append(self.capacity.changed)
        self.execution = BatchExecution(
            ExecutionParts(
                engine=cast(Engine, engine),
                producer=producer,
                objects=cast(ObjectStore, objects),
                wanted=Wanted(cast(JobControls, self.closed), self.time, SystemClock()),
                capacity=self.capacity,
                job_class="bulk",
                clock=SystemClock(),
            ),
            turns,
            self.trials,
        )
        self.isolation = Isolation(
            self.execution,
            cast(AttemptLog, attempts),
            turns,
            self.trials,
            crashes_max=CRASHES_MAX,
            rest_s=rest_s,
        )
        self.pool = PoolHealth([self.capacity], backoff_s_max=1)
        self.lane = BulkLane(
            cast(BatchConsumer, self.consumer),
            self.capacity,
            self.execution,
            self.isolation,
            (self.pool, self.tasks),
        )

    async def end(self) -> BaseException | None:
        """Wait until nothing runs; return what ended the process."""
        running = [run.task for run in self.execution.runs if run.task is not None]
        if running:
            await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
        self.tasks.cancel_all()
        await self.tasks.wait_all(5)
        return self.tasks.failed.exception() if self.tasks.failed.done() else None


def delivery(batch: Batch, *, old: bool = False, offset: int = 0) -> Delivery:
    record = Received("batches.p.bulk", 0, offset, None, [], b"", 0)
    return Delivery(record, batch, 1, old)


def batch_of(*bodies: bytes, job_number: int = 1) -> Batch:
    job = JobRef(
        job_id=UUID(int=job_number),
        day=20000,
        tenant_id=UUID(int=5),
        model="m",
        model_version="1",
        pool="p",
        endpoint="/v1/chat/completions",
        input_key="files/in",
        deadline_s=0,
    )
    found = [Item(index, f"c{index}", body, 1) for index, body in enumerate(bodies)]
    return Batch(uuid4(), "b", [Chunk(job, found)])


def covered(units: list[Unit]) -> int:
    return sum(unit.count for unit in units)
