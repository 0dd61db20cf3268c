"""A replica on a thread with a scripted engine, and access to the topics around it."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, cast
from uuid import UUID, uuid4

from msgspec.structs import replace

from core.clock import Clock, SystemClock
from core.errors import EngineDeadError, PoolUnavailableError
from gpu_consumers.engines.engine import (
    EmitEvent,
    Engine,
    EngineAnswer,
    OnAnswer,
    SlotCounts,
    UsageMeter,
)
from gpu_consumers.settings import ReplicaSettings
from gpu_consumers.wiring import build_replica
from storage.objects.errors import ObjectStoreUnavailableError
from storage.objects.local_object_store import LocalObjectStore, LocalUpload
from storage.objects.object_store import ObjectBlocks, write_object
from tests.support.until import until
from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import CAPACITY, JOB_CLASSES, RESULTS, Topic, batches_topic
from topics.records.codec import decode, encode, kind_headers
from topics.records.records import Batch, Capacity, Chunk, Item, ItemOutcome, JobRef, Outcomes
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

JobClass = Literal["both", "bulk", "interactive"]
POOL = "p"
BATCHES = batches_topic(POOL, "bulk")


class ScriptedEngine:
    """Answers at once, unless a test closes `gate`, makes it unavailable or kills it."""

    concurrency = 10
    headroom = 0
    bulk_concurrency = 10
    slots = SlotCounts(0, 0, 0)
    engine_hash, adapters = "", ()

    def __init__(self) -> None:
        self.is_unavailable = False
        self.is_dead = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.bodies: list[bytes] = []
        self.called = threading.Event()
        self.silent_count = 0  # items that get no answer
        self.answer = b'{"a":1}'
        self.running = 0  # online calls

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def execute(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer, adapter: str = ""
    ) -> None:
        self.called.set()
        for index, body in enumerate(bodies[self.silent_count :], self.silent_count):
            if body == b"die":
                raise EngineDeadError
            await self.gate.wait()
            if self.is_dead:
                raise EngineDeadError
            if self.is_unavailable and index >= len(bodies) // 2:
                raise PoolUnavailableError
            self.bodies.append(body)
            status = 400 if b"bad" in body else 200
            finished(index, EngineAnswer(status, self.answer, input_tokens=3, output_tokens=2))
            finished(index, EngineAnswer(status, b"again"))  # a repetition, which is ignored

    async def serve(
        self,
        endpoint: str,
        body: bytes,
        emit: EmitEvent | None,
        meter: UsageMeter | None = None,
        adapter: str = "",
    ) -> EngineAnswer:
        """Stream five pieces, the last four after `gate` opens; or return one answer."""
        self.called.set()
        if self.is_unavailable:
            raise PoolUnavailableError
        assert meter is not None
        meter.on_start()
        self.running += 1
        try:
            if emit is not None:
                emit(b'{"n":0}')
                meter.with_usage = lambda answer: replace(answer, input_tokens=3, output_tokens=1)
            await self.gate.wait()
            if self.is_dead:
                raise EngineDeadError
            for number in range(1, 5 if emit is not None else 0):
                assert emit is not None
                emit(b'{"n":%d}' % number)
            self.bodies.append(body)
        finally:
            self.running -= 1
        status = 400 if b"bad" in body else 200
        answer = b"" if emit is not None and status < 400 else self.answer
        return EngineAnswer(status, answer, input_tokens=3, output_tokens=5)


class FaultyObjects(LocalObjectStore):
    """A folder that may be unavailable or slow."""

    is_away = False

    def __init__(self, root: Path, *, clock: Clock) -> None:
        super().__init__(root, clock=clock)
        self.gate = threading.Event()
        self.gate.set()

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
        if self.is_away:
            raise ObjectStoreUnavailableError
        return super().read(key, offset=offset, length=length)

    def begin_upload(self, key: str) -> LocalUpload:
        if self.is_away:
            raise ObjectStoreUnavailableError
        assert self.gate.wait(30)
        return super().begin_upload(key)


class ThreadedReplica:
    """A replica on a thread, and the topics around it."""

    def __init__(self, kafka: KafkaSettings, folder: Path, job_class: JobClass = "bulk") -> None:
        self.kafka, self._job_class = kafka, job_class
        self.objects = FaultyObjects(folder, clock=SystemClock())
        self.producer = RecordProducer(kafka, client_id="test", linger_ms=0)
        self.engine: ScriptedEngine
        self.stop = threading.Event()
        self.failure: BaseException | None = None
        self.left = threading.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._main)

    def start(self) -> None:
        """Start; return when every partition is assigned, so that records from now on are new."""
        self._thread.start()
        assert self._started.wait(40)
        self.await_owner(JOB_CLASSES if self._job_class == "both" else (self._job_class,))

    def close(self) -> None:
        self.stop.set()
        if self._thread.is_alive():
            self._thread.join(30)
        self.producer.close()

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()

    def in_flight(self) -> int:
        return self._replica.in_flight

    def await_owner(self, job_classes: Sequence[str] = ("bulk",)) -> None:
        """Wait until one replica owns every partition of these classes."""

        def owns_all(told: list[object]) -> bool:
            owned = {c.job_class for c in cast(list[Capacity], told) if len(c.partitions) == 8}
            return owned.issuperset(job_classes)

        self.read(CAPACITY, owns_all)

    def call(self, action: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(action)

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as failure:  # noqa: BLE001  the test checks it
            self.failure = failure

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.engine = ScriptedEngine()
        engine: Engine = self.engine
        settings = ReplicaSettings(
            pool=POOL,
            job_class=self._job_class,
            in_flight_batches_max=50,
            shutdown_grace_s=1.0,
            unavailable_backoff_s_max=1.0,
        )
        self._replica, closing = build_replica(settings, self.kafka, engine, self.objects)
        self._started.set()
        try:
            with closing:
                await self._replica.run(self.stop)
        finally:
            self.left.set()

    def store(self, key: str, content: bytes) -> None:
        write_object(self.objects, key, content)

    def hold(self, batch: Batch) -> None:
        """Send a batch and wait until the engine, with its gate closed, has got it."""
        self.call(self.engine.gate.clear)
        self.send(batch)
        assert self.engine.called.wait(40)

    def send(self, batch: Batch, partition: int = 0, job_class: str = "bulk") -> None:
        self.producer.send(
            batches_topic(POOL, job_class).name,
            encode(batch),
            partition=partition,
            headers=kind_headers(Batch),
        )
        self.producer.flush(40)

    def read(self, topic: Topic, enough: Callable[[list[object]], bool]) -> list[object]:
        """Read `topic` until `enough` holds; return its decoded records."""
        tail = TopicTailReader(self.kafka, topic, client_id="test-reader")
        found: list[object] = []
        deadline = time.monotonic() + 40
        while not enough(found):
            assert time.monotonic() < deadline, found
            for record in tail.poll(0.2):
                found.append(decode(topic.records[0], record.value, record.headers))
        tail.close()
        return found

    def outcomes(self, count: int, *, bills: bool = False) -> list[ItemOutcome]:
        """Wait for `count` outcomes of jobs, or `bills` of bound calls, and return them."""

        def items(found: list[object]) -> list[ItemOutcome]:
            records = [cast(Outcomes, record) for record in found]
            return [i for record in records if _is_bill(record) == bills for i in record.items]

        return items(self.read(RESULTS, lambda found: len(items(found)) >= count))

    def outcome_records(self, count: int) -> list[Outcomes]:
        """Wait for `count` outcomes and return all records up to them."""

        def is_enough(found: list[object]) -> bool:
            return sum(len(cast(Outcomes, record).items) for record in found) >= count

        return [cast(Outcomes, record) for record in self.read(RESULTS, is_enough)]

    def lag(self, job_class: str = "bulk") -> int:
        topic = batches_topic(POOL, job_class)
        return sum(TopicAdmin(self.kafka).lag(f"gpu-{POOL}-{job_class}", topic).values())

    def has_lag(self, expected: int, job_class: str = "bulk") -> bool:
        with contextlib.suppress(KafkaUnavailableError):  # a new topic has no leader yet
            return self.lag(job_class) == expected
        return False

    def await_lag(self, expected: int, job_class: str = "bulk") -> None:
        until(lambda: self.has_lag(expected, job_class))


def _is_bill(record: Outcomes) -> bool:
    return record.job.call is not None and not record.job.call.durable


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
