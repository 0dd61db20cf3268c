"""Goal: an unavailable partition holds up what lies on it, nothing else, and ends no role.

Each test freezes the broker of one partition for longer than the delivery timeout.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count, islice, takewhile
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from core.states import JobState
from jobs.outbox_relay import OutboxRelay, backlog
from jobs.store.outbox import event_insert, outbox_insert
from results.webhooks.events.event_reader import GROUP, JobEventReader
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import write_object
from tenancy.tables import tenants as tenants_table
from tests.integration.batcher import harness
from tests.integration.batcher.harness import Bench, Replica
from tests.integration.gpu_consumers.threaded_replica import (
    BATCHES,
    ThreadedReplica,
    batch,
    items,
    job,
)
from tests.integration.jobs.expansion_process import ExpansionProcess
from tests.integration.jobs.rows import add_running_job, input_line
from tests.integration.partitions.conftest import DEAD
from tests.integration.partitions.frozen_topics import create_topics, patient, until
from tests.integration.partitions.log_records import read_partitions, wait_unavailable
from tests.support.two_brokers import TwoBrokers
from topics.clients.consumer import GroupConsumer
from topics.clients.producer import RecordProducer
from topics.records.catalogue import (
    CONTROL,
    DEAD_LETTERS,
    EVENTS,
    REQUESTS_BULK,
    RESULTS,
    Topic,
    batches_topic,
)
from topics.records.codec import decode, encode, kind_headers
from topics.records.partitioner import shuffle_shard
from topics.records.records import Chunk, JobControl, JobEvent, Outcomes
from topics.settings import KafkaSettings

pytestmark = pytest.mark.timeout(240)

BATCH_COUNT = 160
HEALTHY = [number for number in range(8) if number != DEAD]


def outcomes(kafka: KafkaSettings, partitions: list[int]) -> Counter[tuple[int, int]]:
    """Count the outcomes of each job and item on partitions of `results`."""
    found = read_partitions(kafka, RESULTS, partitions)
    records = [decode(Outcomes, record.value, record.headers) for record in found]
    return Counter((r.job.job_id.int, item.index) for r in records for item in r.items)


def test_a_replica_publishes_the_outcomes_of_other_jobs(
    brokers: TwoBrokers, kafka: KafkaSettings, closing: ExitStack, tmp_path: Path
) -> None:
    create_topics(brokers, kafka, RESULTS)
    replica = ThreadedReplica(kafka, tmp_path)
    replica.producer.close()
    replica.producer = RecordProducer(patient(kafka), client_id="test", linger_ms=0)
    closing.callback(replica.close)
    closing.callback(brokers.thaw)
    replica.start()
    for number in range(BATCH_COUNT):
        if number == 8:
            until(lambda: outcomes(kafka, [DEAD]).total() == 2)  # its first batch
            brokers.freeze()
        replica.send(batch(Chunk(job(number % 8), items(2 * number, 2))))
    expected = {(n % 8, 2 * n + second) for n in range(BATCH_COUNT) for second in range(2)}
    of_dead = {key for key in expected if key[0] == DEAD}
    until(lambda: outcomes(kafka, HEALTHY).keys() == expected - of_dead)
    wait_unavailable(RESULTS, DEAD, 2 * kafka.delivery_timeout_s)
    assert replica.failure is None
    assert 0 < replica.lag() < BATCH_COUNT

    brokers.thaw()
    until(lambda: outcomes(kafka, [DEAD]).keys() == of_dead)
    replica.await_lag(0)
    assert set(outcomes(kafka, [*range(8)]).values()) == {1}
    assert len(replica.engine.bodies) == 2 * BATCH_COUNT
    requeued = len(read_partitions(kafka, BATCHES, [0])) - BATCH_COUNT
    assert 0 < requeued <= BATCH_COUNT
    replica.close()
    assert replica.failure is None


@pytest.fixture
def waiting_producer(kafka: KafkaSettings, closing: ExitStack) -> RecordProducer:
    """The producer of an intake thread."""
    producer = RecordProducer(kafka, client_id="intake", waits_for_partitions=True)
    closing.callback(producer.close)
    return producer


def test_a_relay_sends_rows_of_other_topics_than_control(
    brokers: TwoBrokers, kafka: KafkaSettings, engine: sa.Engine, waiting_producer: RecordProducer
) -> None:
    create_topics(brokers, kafka, CONTROL)
    relay = OutboxRelay(engine, waiting_producer, SystemClock())

    def add_rows(first: int) -> None:
        with engine.begin() as connection:
            for number in range(first, first + 4):
                job_id = UUID(int=number)
                control = JobControl(job_id, 1)
                connection.execute(outbox_insert(CONTROL, control, job_id=job_id))
                event = event_insert(job_id, job_id, JobState.COMPLETED, 0.0)
                connection.execute(event)

    def relayed(topic: Topic) -> list[bytes | None]:
        return [r.key for r in read_partitions(kafka, topic, range(topic.partition_count))]

    def relay_all() -> int:
        """Return how many rows wait after a run."""
        relay.run_once()
        with engine.begin() as connection:
            return backlog(connection)[0]

    keys = [UUID(int=number).bytes for number in range(12)]
    add_rows(0)
    until(lambda: relay_all() == 0)
    brokers.freeze()
    for first in (4, 8):
        add_rows(first)
        relay.run_once()
    assert sorted(key or b"" for key in relayed(EVENTS)) == keys
    wait_unavailable(CONTROL, 0, 2 * kafka.delivery_timeout_s)
    relay.run_once()

    brokers.thaw()
    until(lambda: relay_all() == 0 and relayed(CONTROL) == keys)
    assert len(relayed(EVENTS)) == len(keys)
    until(lambda: relay_all() == 0)


def test_webhooks_commit_other_events_while_dead_letters_are_unavailable(
    brokers: TwoBrokers,
    kafka: KafkaSettings,
    engine: sa.Engine,
    waiting_producer: RecordProducer,
    closing: ExitStack,
) -> None:
    create_topics(brokers, kafka, DEAD_LETTERS)
    consumer = GroupConsumer(
        kafka,
        group=GROUP,
        topics=[EVENTS.name],
        client_id="webhooks",
        on_assign=lambda _: None,
        on_revoke=lambda _: None,
    )
    closing.callback(consumer.close)
    closing.callback(brokers.thaw)
    reader = JobEventReader(engine, consumer, waiting_producer, lambda: None)

    def committed() -> list[int]:
        """Read and commit; return the next offsets of two partitions, -1 before the first."""
        reader.run_once()
        return [reader._committed.get((EVENTS.name, number), -1) for number in (0, 1)]

    def send(number: int, value: bytes) -> None:
        kind = kind_headers(JobEvent)
        waiting_producer.send(EVENTS.name, value, partition=number, headers=kind)

    event = encode(JobEvent(uuid4(), uuid4(), uuid4(), JobState.COMPLETED, 0.0))
    send(1, event)
    until(lambda: committed() == [-1, 1])
    brokers.freeze()
    send(0, b"no event")
    send(1, event)
    until(lambda: committed() == [0, 2])
    wait_unavailable(DEAD_LETTERS, 0, 2 * kafka.delivery_timeout_s)
    assert committed() == [0, 2]

    brokers.thaw()
    until(lambda: committed() == [1, 2])
    assert len(read_partitions(kafka, DEAD_LETTERS, [0])) == 1


def test_intake_emits_jobs_on_other_partitions_of_requests(
    brokers: TwoBrokers,
    kafka: KafkaSettings,
    engine: sa.Engine,
    tmp_path: Path,
    waiting_producer: RecordProducer,
    closing: ExitStack,
) -> None:
    create_topics(brokers, kafka, REQUESTS_BULK)
    objects = LocalObjectStore(tmp_path, clock=SystemClock())
    write_object(objects, "in", b"".join(input_line(n) + b"\n" for n in range(400)))
    process = ExpansionProcess(engine, objects, waiting_producer)
    closing.callback(process.jobs.close)
    tenants = (uuid4() for _ in count())
    of_dead, other = (
        next(t for t in tenants if (DEAD in shuffle_shard("pool-small", t, 16)) is is_dead)
        for is_dead in (True, False)
    )
    with engine.begin() as connection:
        for tenant_id in (of_dead, other):
            connection.execute(tenants_table.insert().values(id=tenant_id, name=tenant_id.hex))
        waiting, free = (add_running_job(connection, t, 400) for t in (of_dead, other))
    process.claim()
    allowed = {waiting: 200, free: 100}

    def emitted() -> dict[UUID, int]:
        return {load.job_id: load.emitted for load in process.loads()}

    process.expander.run_once(allowed)
    until(lambda: process.expander.run_once({}) or emitted() == allowed)
    brokers.freeze()
    process.expander.run_once(allowed)
    process.expander.run_once(allowed)
    wait_unavailable(REQUESTS_BULK, DEAD, 2 * kafka.delivery_timeout_s)
    process.expander.run_once(allowed)
    assert emitted() == {waiting: 200, free: 400}

    brokers.thaw()
    until(lambda: process.expander.run_once({}) or emitted()[waiting] == 400)

    def items() -> Counter[tuple[UUID, int]]:
        records = read_partitions(kafka, REQUESTS_BULK, range(16))
        chunks = [decode(Chunk, record.value, record.headers) for record in records]
        return Counter((c.job.job_id, item.index) for c in chunks for item in c.items)

    until(lambda: items() == {(job_id, index): 1 for job_id in allowed for index in range(400)})


def dispatch_jobs(bench: Bench, replica: Replica, numbers: Iterable[int]) -> None:
    """Send jobs of 300 items, one after the other, and wait until the replica has each."""
    for number in numbers:
        job = harness.job_ref(number)
        bench.requests.send(job, 300)
        until(partial(has_items, replica, harness.expected(job, 300)))


def has_items(replica: Replica, wanted: Counter[tuple[UUID, int]]) -> bool:
    return wanted.keys() <= replica.items().keys()


def frozen_numbers(kafka: KafkaSettings, numbers: Iterable[int]) -> Iterator[int]:
    """Yield numbers for twice the delivery timeout."""
    end_s = time.monotonic() + 2 * kafka.delivery_timeout_s
    return takewhile(lambda _: time.monotonic() < end_s, numbers)


def batcher_settings(kafka: KafkaSettings) -> dict[str, object]:
    return {
        "MILLRACE_KAFKA_DELIVERY_TIMEOUT_S": kafka.delivery_timeout_s,
        "MILLRACE_KAFKA_PARTITION_TIMEOUT_S": kafka.partition_timeout_s,
    }


def test_a_batcher_sends_items_to_other_partitions_of_a_pool(
    brokers: TwoBrokers, kafka: KafkaSettings, closing: ExitStack, tmp_path: Path, database_url: str
) -> None:
    create_topics(brokers, kafka, batches_topic(harness.POOL, "bulk"), harness.POOL)
    bench = Bench(patient(kafka), database_url, tmp_path, closing)
    replica = bench.start_replica()  # of partitions 1 and 3
    batcher = bench.start_batcher(**batcher_settings(kafka))
    closing.callback(brokers.thaw)
    numbers = count(1)
    dispatch_jobs(bench, replica, islice(numbers, 5))
    sent_before = replica.items()
    brokers.freeze()
    dispatch_jobs(bench, replica, frozen_numbers(kafka, numbers))
    assert set(replica.items().values()) == {1}
    assert batcher.process.poll() is None

    brokers.thaw()
    until(lambda: bench.lag() == 0)
    dispatch_jobs(bench, replica, islice(numbers, 2))
    repeated = {item for item, times in replica.items().items() if times > 1}
    assert len(repeated) <= replica.window
    assert not repeated & sent_before.keys()
    assert batcher.stop() == 0


def test_a_batcher_reads_other_partitions_of_requests(
    brokers: TwoBrokers, kafka: KafkaSettings, closing: ExitStack, tmp_path: Path, database_url: str
) -> None:
    create_topics(brokers, kafka, REQUESTS_BULK, harness.POOL)
    bench = Bench(patient(kafka), database_url, tmp_path, closing)
    replica = bench.start_replica()
    batcher = bench.start_batcher(**batcher_settings(kafka))
    closing.callback(brokers.thaw)
    shards = {n: shuffle_shard(harness.POOL, UUID(int=n), 16) for n in range(1, 10_000)}
    healthy = (number for number, shard in shards.items() if DEAD not in shard)
    of_dead = [number for number, shard in shards.items() if DEAD in shard]
    dispatch_jobs(bench, replica, [*islice(healthy, 3), *of_dead[:2]])
    brokers.freeze()
    dispatch_jobs(bench, replica, frozen_numbers(kafka, healthy))
    until(lambda: '"a partition cannot be read"' in batcher.log.read_text())
    assert batcher.process.poll() is None

    brokers.thaw()
    until(lambda: '"a partition can be read again"' in batcher.log.read_text())
    until(lambda: bench.lag() == 0)
    dispatch_jobs(bench, replica, of_dead[2:4])
    assert set(replica.items().values()) == {1}
    assert batcher.stop() == 0
