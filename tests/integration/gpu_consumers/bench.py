"""A replica on a thread of its own with a scripted engine, and the log around it."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID, uuid4

from core.clock import Clock, SystemClock
from core.errors import EngineDeadError, PoolUnavailableError
from gpu_consumers.capacity import CapacityPublisher, ReplicaIdentity
from gpu_consumers.consumer import Assigned, BatchConsumer
from gpu_consumers.engines.engine import Answer, Engine, Finished
from gpu_consumers.execution import BatchExecution, ExecutionParts
from gpu_consumers.replica import Replica, ReplicaParts
from storage.errors import ObjectStoreAwayError
from storage.local_objects import LocalObjects, LocalUpload
from storage.objects import Blocks
from topics.admin import LogAdmin
from topics.catalogue import DEMAND, RESULTS, Topic, batches_topic
from topics.codec import decode, encode, kind_headers
from topics.consumer import LogConsumer
from topics.control import ClosedJobs
from topics.producer import LogProducer
from topics.records import Batch, Chunk, Item, ItemOutcome, JobRef
from topics.settings import KafkaSettings
from topics.tail import TopicTail

POOL = "p"
BATCHES = batches_topic(POOL, "bulk")


class ScriptedEngine:
    """Answers at once, unless `away` or `dead` say otherwise."""

    concurrency = 10

    def __init__(self) -> None:
        self.away = False
        self.dead = False
        self.hold = asyncio.Event()
        self.hold.set()
        self.bodies: list[bytes] = []
        self.asked = threading.Event()
        self.silent_count = 0  # items that it returns without an answer for
        self.answer = b'{"a":1}'

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def execute(self, endpoint: str, bodies: Sequence[bytes], finished: Finished) -> None:
        self.asked.set()
        for index, body in enumerate(bodies[self.silent_count :], self.silent_count):
            if body == b"die":
                raise EngineDeadError
            await self.hold.wait()
            if self.dead:
                raise EngineDeadError
            if self.away and index >= len(bodies) // 2:
                raise PoolUnavailableError
            self.bodies.append(body)
            status = 400 if b"bad" in body else 200
            finished(index, Answer(status, self.answer, input_tokens=3, output_tokens=2))
            finished(index, Answer(status, b"again"))  # a repeat changes nothing


class AilingObjects(LocalObjects):
    """A folder that may be away, or slow."""

    is_away = False

    def __init__(self, root: Path, *, clock: Clock) -> None:
        super().__init__(root, clock=clock)
        self.gate = threading.Event()
        self.gate.set()

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> Blocks:
        if self.is_away:
            raise ObjectStoreAwayError
        return super().read(key, offset=offset, length=length)

    def begin(self, key: str) -> LocalUpload:
        if self.is_away:
            raise ObjectStoreAwayError
        assert self.gate.wait(30)
        return super().begin(key)


class Bench:
    """A replica on a thread of its own, and the log around it."""

    def __init__(self, kafka: KafkaSettings, folder: Path) -> None:
        self.kafka = kafka
        self.objects = AilingObjects(folder, clock=SystemClock())
        self.producer = LogProducer(kafka, client_id="test", linger_ms=0)
        self.engine: ScriptedEngine
        self.stop = threading.Event()
        self.failure: BaseException | None = None
        self.left = threading.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._main)

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(20)

    def close(self) -> None:
        self.stop.set()
        self._thread.join(30)
        self.producer.close()

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()

    def in_flight(self) -> int:
        return self._capacity.in_flight

    def call(self, action: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(action)

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as failure:  # noqa: BLE001  the test looks at it
            self.failure = failure

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.engine = ScriptedEngine()
        engine: Engine = self.engine
        clock = SystemClock()
        producer = LogProducer(self.kafka, client_id="replica", linger_ms=0)
        closed = ClosedJobs(self.kafka, client_id="replica")
        closed.start(20)
        capacity = CapacityPublisher(
            ReplicaIdentity(replica_id="r1", pool=POOL, job_class="bulk", batch_items=100),
            producer,
            lambda: engine.concurrency,
            clock,
        )
        self._capacity = capacity
        execution = BatchExecution(
            ExecutionParts(
                engine=engine,
                producer=producer,
                objects=self.objects,
                closed=closed,
                capacity=capacity,
                job_class="bulk",
                clock=clock,
            )
        )

        def connect(on_assign: Assigned, on_revoke: Assigned) -> LogConsumer:
            return LogConsumer(
                self.kafka,
                group="gpu",
                topics=[BATCHES.name],
                client_id="replica",
                on_assign=on_assign,
                on_revoke=on_revoke,
            )

        consumer = BatchConsumer(
            connect, producer, in_flight_max=50, commit_interval_s=0.05, clock=clock
        )
        replica = Replica(
            ReplicaParts(
                engine=engine,
                consumer=consumer,
                capacity=capacity,
                execution=execution,
                demand=TopicTail(self.kafka, DEMAND, client_id="replica"),
            ),
            shutdown_grace_s=1.0,
            backoff_s_max=1.0,
        )
        self._started.set()
        try:
            await replica.run(self.stop)
        finally:
            closed.stop()
            producer.close()
            self.left.set()

    def send(self, batch: Batch, partition: int = 0) -> None:
        self.producer.send(
            BATCHES.name, encode(batch), partition=partition, headers=kind_headers(Batch)
        )
        self.producer.flush(10)

    def read(self, topic: Topic, enough: Callable[[list[object]], bool]) -> list[object]:
        """Return every record of `topic`, decoded, once there are enough."""
        tail = TopicTail(self.kafka, topic, client_id="test-reader")
        found: list[object] = []
        deadline = time.monotonic() + 25
        while not enough(found):
            assert time.monotonic() < deadline, found
            for record in tail.poll(0.2):
                found.append(decode(topic.records[0], record.value, record.headers))
        tail.close()
        return found

    def outcomes(self, count: int) -> list[ItemOutcome]:
        def items(found: list[object]) -> list[ItemOutcome]:
            return [i for record in found for i in record.items]  # type: ignore[attr-defined]

        return items(self.read(RESULTS, lambda found: len(items(found)) >= count))

    def lag(self) -> int:
        return sum(LogAdmin(self.kafka).lag("gpu", BATCHES).values())

    def await_lag(self, wanted: int) -> None:
        deadline = time.monotonic() + 15
        while (lag := self.lag()) != wanted:
            assert time.monotonic() < deadline, lag


def job(number: int = 1, input_key: str = "files/in") -> JobRef:
    return JobRef(
        job_id=UUID(int=number),
        day=20000,
        tenant_id=UUID(int=5),
        model="m",
        model_version="1",
        pool=POOL,
        endpoint="/v1/chat/completions",
        input_key=input_key,
        deadline_s=0,
    )


def batch(*parts: Chunk) -> Batch:
    return Batch(batch_id=uuid4(), batcher_id="b", parts=list(parts))


def items(first: int, count: int, body: bytes = b"{}") -> list[Item]:
    return [Item(n, f"c{n}", body, 1) for n in range(first, first + count)]
