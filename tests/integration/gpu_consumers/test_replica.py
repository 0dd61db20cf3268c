"""Goal: a replica makes every item's end durable before it commits, whatever its pool does."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from core.clock import SystemClock
from core.errors import EngineDeadError, PoolUnavailableError
from core.outcomes import Outcome
from core.states import CloseReason
from gpu_consumers.capacity import CapacityPublisher, ReplicaIdentity
from gpu_consumers.consumer import Assigned, BatchConsumer
from gpu_consumers.engines.engine import Answer, Engine, Finished
from gpu_consumers.execution import BatchExecution, ExecutionParts
from gpu_consumers.replica import Replica, ReplicaParts
from storage.local_objects import LocalObjects
from topics.admin import LogAdmin
from topics.catalogue import (
    CAPACITY,
    CONTROL,
    DEAD_LETTERS,
    DEMAND,
    REQUESTS_BULK,
    RESULTS,
    Topic,
    batches_topic,
    pool_topics,
)
from topics.codec import decode, encode, kind_headers
from topics.consumer import LogConsumer
from topics.control import ClosedJobs
from topics.producer import LogProducer
from topics.records import (
    Batch,
    Capacity,
    Chunk,
    DeadLetter,
    Demand,
    Item,
    ItemOutcome,
    JobControl,
    JobRef,
)
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

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def execute(self, endpoint: str, bodies: Sequence[bytes], finished: Finished) -> None:
        self.asked.set()
        for index, body in enumerate(bodies):
            await self.hold.wait()
            if self.dead:
                raise EngineDeadError
            if self.away and index >= len(bodies) // 2:
                raise PoolUnavailableError
            self.bodies.append(body)
            status = 400 if b"bad" in body else 200
            finished(index, Answer(status, b'{"a":1}', input_tokens=3, output_tokens=2))


class Bench:
    """A replica on a thread of its own, and the log around it."""

    def __init__(self, kafka: KafkaSettings, folder: Path) -> None:
        self.kafka = kafka
        self.objects = LocalObjects(folder, clock=SystemClock())
        self.producer = LogProducer(kafka, client_id="test", linger_ms=0)
        self.engine: ScriptedEngine
        self.stop = threading.Event()
        self.failure: BaseException | None = None
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


@pytest.fixture
def bench(kafka_bootstrap: str, topic_prefix: str, tmp_path: Path) -> Iterator[Bench]:
    kafka = KafkaSettings(bootstrap_servers=kafka_bootstrap, topic_prefix=topic_prefix)
    LogAdmin(kafka).create(
        [RESULTS, CONTROL, CAPACITY, DEMAND, DEAD_LETTERS, REQUESTS_BULK, *pool_topics(POOL)]
    )
    bench = Bench(kafka, tmp_path)
    yield bench
    bench.close()


def test_outcomes_of_two_jobs_are_durable_and_then_committed(bench: Bench) -> None:
    bench.start()
    bench.send(batch(Chunk(job(1), items(0, 3)), Chunk(job(2), items(7, 2, b"bad"))))
    outcomes = bench.outcomes(5)
    assert [(o.index, o.outcome, o.status_code) for o in outcomes if o.index < 5] == [
        (n, Outcome.SUCCEEDED, 200) for n in range(3)
    ]
    assert {(o.custom_id, o.outcome) for o in outcomes if o.index >= 7} == {
        ("c7", Outcome.FAILED),
        ("c8", Outcome.FAILED),
    }
    bench.await_lag(0)


def test_a_pool_that_is_away_gets_its_items_back_uncharged(bench: Bench) -> None:
    bench.start()
    bench.engine.away = True
    bench.send(batch(Chunk(job(), items(0, 10))))
    done = bench.outcomes(5)
    chunks = bench.read(REQUESTS_BULK, bool)
    back = [i for chunk in chunks for i in chunk.items]  # type: ignore[attr-defined]
    assert sorted(o.index for o in done) + [i.index for i in back] == list(range(10))
    assert {i.attempt for i in back} == {1}
    bench.await_lag(0)
    last = bench.read(CAPACITY, lambda found: any(not c.available for c in found))  # type: ignore[attr-defined]
    assert last


def test_a_dead_engine_ends_the_process_with_its_offset_uncommitted(bench: Bench) -> None:
    bench.start()
    bench.engine.dead = True
    bench.send(batch(Chunk(job(), items(0, 2))))
    bench.join()
    assert isinstance(bench.failure, EngineDeadError)
    assert bench.lag() == 1


def test_stopping_hands_back_what_does_not_finish(bench: Bench) -> None:
    bench.start()
    bench.call(bench.engine.hold.clear)
    bench.send(batch(Chunk(job(), items(0, 4))))
    bench.read(CAPACITY, bool)
    assert bench.engine.asked.wait(20)
    bench.stop.set()
    bench.join()
    assert bench.failure is None
    chunks = bench.read(REQUESTS_BULK, bool)
    assert [i.index for chunk in chunks for i in chunk.items] == [0, 1, 2, 3]  # type: ignore[attr-defined]
    assert bench.lag() == 0


def test_items_of_a_closed_job_are_not_executed(bench: Bench) -> None:
    control = JobControl(job_id=UUID(int=1), version=1, closed=CloseReason.CANCELLED)
    bench.producer.send(
        CONTROL.name,
        encode(control),
        partition=0,
        key=UUID(int=1).bytes,
        headers=kind_headers(JobControl),
    )
    bench.producer.flush(10)
    bench.start()
    bench.send(batch(Chunk(job(1), items(0, 3, b"no")), Chunk(job(2), items(3, 1, b"yes"))))
    assert [o.index for o in bench.outcomes(1)] == [3]
    bench.await_lag(0)
    assert bench.engine.bodies == [b"yes"]


def test_an_item_by_reference_is_read_from_its_file(bench: Bench) -> None:
    line = b'{"custom_id":"x","body":{"big":1}}\n'
    with bench.objects.begin("files/big") as upload:
        upload.write(b"first\n" + line)
        upload.complete()
    bench.start()
    by_reference = Item(0, "x", b"", 1, 1, 6, len(line))
    missing = Item(1, "y", b"", 1, 1, 6, len(line))
    bench.send(
        batch(
            Chunk(job(1, "files/big"), [by_reference]),
            Chunk(job(2, "files/gone"), [missing]),
        )
    )
    outcomes = {o.index: o for o in bench.outcomes(2)}
    assert bench.engine.bodies == [b'{"big":1}']
    assert outcomes[1].outcome is Outcome.FAILED


def test_an_unreadable_batch_is_kept_as_a_dead_letter(bench: Bench) -> None:
    bench.start()
    bench.producer.send(BATCHES.name, b"\xc1not a batch", partition=3, headers=kind_headers(Batch))
    bench.producer.flush(10)
    (letter,) = bench.read(DEAD_LETTERS, bool)
    assert isinstance(letter, DeadLetter)
    assert (letter.partition, letter.code, letter.value) == (
        3,
        "record_unreadable",
        b"\xc1not a batch",
    )
    bench.await_lag(0)


def test_grants_reach_a_batcher_and_grow_with_what_it_sent(bench: Bench) -> None:
    bench.start()
    said = Demand("b", "bulk", {POOL: 50})
    deadline = time.monotonic() + 20
    tail = TopicTail(bench.kafka, CAPACITY, client_id="grants")
    granted: list[Capacity] = []
    sent = False
    while time.monotonic() < deadline:
        bench.producer.send(DEMAND.name, encode(said), partition=0, headers=kind_headers(Demand))
        granted += [decode(Capacity, r.value, r.headers) for r in tail.poll(0.2)]
        ready = [c for c in granted if c.granted.get("b") and len(c.partitions) == 8]
        if ready and not sent:
            first = ready[-1]
            spending = Batch(
                batch_id=uuid4(),
                batcher_id="b",
                parts=[Chunk(job(), items(0, 5))],
                replica_id=first.replica_id,
                epoch=first.epoch,
            )
            bench.send(spending, first.partitions[0])
            sent = True
        if sent and granted[-1].granted.get("b", 0) >= first.granted["b"] + 5:
            break
    assert granted[-1].granted["b"] >= first.granted["b"] + 5
    assert granted[-1].epoch == first.epoch
    tail.close()
