"""Goal: a role reads all partitions but those that are unavailable, and names these.

Each test freezes the broker of one partition for longer than the delivery timeout.
"""

from collections import Counter
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from core.states import CloseReason
from storage.postgres.settings import DatabaseSettings
from tests.integration.batcher import harness
from tests.integration.batcher.harness import Bench
from tests.integration.partitions.conftest import DEAD
from tests.integration.partitions.frozen_topics import (
    create_topics,
    patient,
    until,
    wait_readable,
    wait_unreadable,
)
from tests.integration.partitions.log_records import read_partitions, wait_unavailable
from tests.integration.partitions.test_unavailable_partitions import (
    batcher_settings,
    dispatch_jobs,
    frozen_numbers,
    has_items,
)
from tests.integration.results.job_log import JobLog, running
from tests.integration.results.outcomes import add_running_job, assert_totals_agree, job
from tests.support.two_brokers import TwoBrokers
from topics.clients.producer import RecordProducer
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import CONTROL, DEAD_LETTERS, RESULTS
from topics.records.codec import decode, encode, kind_headers
from topics.records.partitioner import job_partition, shuffle_shard
from topics.records.records import DeadLetter, JobControl, Outcomes
from topics.settings import KafkaSettings
from topics.tail_readers.job_controls import JobControlReader

pytestmark = pytest.mark.timeout(240)

TORN = b"\xc1" * 900_000
"""A record that no role can decode: five of them exceed the limit of waiting copies."""

TORN_COUNT = 8


@pytest.fixture
def log(
    engine: sa.Engine, kafka: KafkaSettings, database: DatabaseSettings, closing: ExitStack
) -> JobLog:
    producer = RecordProducer(patient(kafka), client_id="test", linger_ms=0)
    closing.callback(producer.close)
    return JobLog(engine, kafka, producer, database)


def add_job_on(engine: sa.Engine, partition: int, total_count: int) -> UUID:
    """Add a job whose outcomes are on a partition of `results`."""
    while True:
        job_id = add_running_job(engine, total_count)
        if job_partition(job_id, RESULTS.partition_count) == partition:
            return job_id


def is_settled(engine: sa.Engine, job_id: UUID) -> bool:
    return job(engine, job_id)["settled_at"] is not None


def letters(kafka: KafkaSettings) -> Counter[tuple[int, int]]:
    """Count the copies of each record, by partition and offset."""
    records = read_partitions(kafka, DEAD_LETTERS, [0])
    found = [decode(DeadLetter, record.value, record.headers) for record in records]
    return Counter((letter.partition, letter.offset) for letter in found)


def test_a_writer_reads_other_partitions_of_results(
    brokers: TwoBrokers, kafka: KafkaSettings, engine: sa.Engine, log: JobLog
) -> None:
    create_topics(brokers, kafka, RESULTS)
    of_dead, *others = (add_job_on(engine, number, 20) for number in (DEAD, 1, 2))
    for job_id in (of_dead, *others):
        log.send_items(job_id, range(10))
    brokers.freeze()
    with running(engine, kafka) as role:
        for job_id in others:
            log.send_items(job_id, range(10, 20))
        until(lambda: all(is_settled(engine, job_id) for job_id in others))
        wait_unreadable(RESULTS, 2 * kafka.delivery_timeout_s)
        assert role.thread.is_alive()
        assert not is_settled(engine, of_dead)

        brokers.thaw()
        wait_readable(RESULTS)
        log.send_items(of_dead, range(10, 20))
        until(lambda: is_settled(engine, of_dead))
    assert role.failure is None
    for job_id in (of_dead, *others):
        assert_totals_agree(engine, job_id)


def test_a_start_fails_until_control_can_be_read_and_then_knows_every_close(
    brokers: TwoBrokers, kafka: KafkaSettings, closing: ExitStack
) -> None:
    create_topics(brokers, kafka, CONTROL)
    producer = RecordProducer(patient(kafka), client_id="test", linger_ms=0)
    closing.callback(producer.close)
    closed = JobControl(UUID(int=7), version=3, closed=CloseReason.CANCELLED)
    value, headers = encode(closed), kind_headers(JobControl)
    producer.send(CONTROL.name, value, partition=0, key=closed.job_id.bytes, headers=headers)
    producer.flush()
    brokers.freeze()
    early = JobControlReader(kafka, client_id="early", clock=SystemClock())
    with pytest.raises(KafkaUnavailableError):
        early.start(3.0)
    early.stop()

    brokers.thaw()
    late = JobControlReader(kafka, client_id="late", clock=SystemClock())
    closing.callback(late.stop)
    late.start(60.0)
    assert late.is_closed(closed.job_id)


def test_a_writer_holds_up_only_the_partition_whose_dead_letters_wait(
    brokers: TwoBrokers, kafka: KafkaSettings, engine: sa.Engine, log: JobLog
) -> None:
    create_topics(brokers, kafka, DEAD_LETTERS)
    behind, other = (add_job_on(engine, number, 20) for number in (1, 2))
    with running(engine, kafka, poll_records_max=2) as role:
        log.send_items(other, range(1))
        until(lambda: role.consumer.assigned)
        brokers.freeze()
        for _ in range(TORN_COUNT):
            log.producer.send(RESULTS.name, TORN, partition=1, headers=kind_headers(Outcomes))
        log.send_items(behind, range(20))
        wait_unavailable(DEAD_LETTERS, 0, 2 * kafka.delivery_timeout_s)
        log.send_items(other, range(1, 20))
        until(lambda: is_settled(engine, other))
        assert role.thread.is_alive()
        assert not is_settled(engine, behind)

        brokers.thaw()
        until(lambda: is_settled(engine, behind))
        until(lambda: log.lag == 0)
    assert role.failure is None
    assert letters(kafka) == {(1, offset): 1 for offset in range(TORN_COUNT)}
    for job_id in (behind, other):
        assert_totals_agree(engine, job_id)


def test_a_batcher_holds_up_only_the_partition_whose_dead_letters_wait(
    brokers: TwoBrokers, kafka: KafkaSettings, closing: ExitStack, tmp_path: Path, database_url: str
) -> None:
    create_topics(brokers, kafka, DEAD_LETTERS, harness.POOL)
    bench = Bench(patient(kafka), database_url, tmp_path, closing)
    replica = bench.start_replica()
    batcher = bench.start_batcher(**batcher_settings(kafka))
    closing.callback(brokers.thaw)
    shards = {n: shuffle_shard(harness.POOL, UUID(int=n), 16) for n in range(1, 10_000)}
    others = (number for number, shard in shards.items() if 0 not in shard)
    behind = next(number for number, shard in shards.items() if 0 in shard)
    dispatch_jobs(bench, replica, islice(others, 2))
    brokers.freeze()
    for _ in range(TORN_COUNT):
        bench.requests.send_raw(TORN, [])
    dispatch_jobs(bench, replica, frozen_numbers(kafka, others))
    bench.requests.send(harness.job_ref(behind), 300)
    dispatch_jobs(bench, replica, islice(others, 3))
    expected = harness.expected(harness.job_ref(behind), 300)
    assert not has_items(replica, expected)
    assert batcher.process.poll() is None

    brokers.thaw()
    until(partial(has_items, replica, expected))
    until(lambda: bench.lag() == 0)
    assert set(replica.items().values()) == {1}
    assert letters(kafka) == {(0, offset): 1 for offset in range(TORN_COUNT)}
    assert batcher.stop() == 0
