"""Goal: records that cannot be dispatched end as specified and pin no offset."""

import time
from uuid import UUID

import sqlalchemy as sa

from core.errors import SchemaTooNewError
from core.outcomes import Outcome
from core.states import CloseReason
from results.writer.day_partitions import DayPartitions
from storage.postgres.engines import create_engine
from storage.postgres.items import items as item_rows
from storage.postgres.settings import DatabaseSettings
from tests.integration.batcher.harness import POOL, Bench, expected, job_ref
from tests.support.until import TIMEOUT_S, until
from topics.clients.admin import TopicAdmin
from topics.records.catalogue import CONTROL, DEAD_LETTERS, REQUESTS_BULK, RESULTS, Topic
from topics.records.codec import chunk_headers, decode, encode, kind_headers
from topics.records.partitioner import shuffle_shard
from topics.records.received_record import ReceivedRecord
from topics.records.records import Chunk, DeadLetter, Item, JobControl, Outcomes
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader


def read(kafka: KafkaSettings, topic: Topic, count: int) -> list[ReceivedRecord]:
    """Read the first records of a topic."""
    tail = TopicTailReader(kafka, topic, client_id="test-reader")
    records: list[ReceivedRecord] = []
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while len(records) < count and time.monotonic() < deadline:
            records += tail.poll(0.2)
    finally:
        tail.close()
    return records


def record_count(kafka: KafkaSettings) -> int:
    """Return the number of request records ever written: none is committed yet."""
    return sum(TopicAdmin(kafka).lag("nobody", REQUESTS_BULK).values())


def tenant_sharing_partitions(*pools: str) -> int:
    """Return a tenant whose records of these pools are in the same partitions."""
    count = REQUESTS_BULK.partition_count
    return next(
        tenant
        for tenant in range(1, 10_000)
        if len({frozenset(shuffle_shard(pool, UUID(int=tenant), count)) for pool in pools}) == 1
    )


def test_unreadable_record_fails_its_items_and_is_dead_lettered(bench: Bench) -> None:
    replica = bench.start_replica()
    batcher = bench.start_batcher()
    good, torn = job_ref(1), job_ref(2)
    chunk = Chunk(torn, [Item(index, f"c{index}", b"{}", 1) for index in range(7, 12)])
    bench.requests.send_raw(encode(chunk)[:40], chunk_headers(chunk, "bulk"))
    bench.requests.send_raw(b"nothing of ours", [])
    bench.requests.send(good, 300)
    until(lambda: len(replica.items()) == 300)
    until(lambda: bench.lag() == 0)
    assert batcher.stop() == 0

    (result,) = read(bench.kafka, RESULTS, 1)
    outcomes = decode(Outcomes, result.value, result.headers)
    assert result.key == torn.job_id.bytes
    assert (outcomes.job.job_id, outcomes.job.day) == (torn.job_id, torn.day)
    assert [item.index for item in outcomes.items] == [7, 8, 9, 10, 11]
    assert {(i.outcome, i.error_code) for i in outcomes.items} == {
        (Outcome.FAILED, "record_unreadable")
    }
    letters = [decode(DeadLetter, r.value, r.headers) for r in read(bench.kafka, DEAD_LETTERS, 2)]
    assert {letter.value for letter in letters} == {encode(chunk)[:40], b"nothing of ours"}
    assert {letter.code for letter in letters} == {"record_unreadable"}


def test_newer_schema_stops_the_role_with_its_offset_uncommitted(bench: Bench) -> None:
    batcher = bench.start_batcher()
    batcher.ready()
    bench.requests.send_raw(b"from the future", [("kind", b"chunk"), ("schema", b"99")])
    until(lambda: batcher.process.poll() is not None)
    assert batcher.process.returncode == 1
    assert SchemaTooNewError.code in batcher.log.read_text()
    assert bench.lag() == 1


def test_items_of_a_closed_job_are_dropped_buffered_or_arriving(bench: Bench) -> None:
    replica = bench.start_replica(window=0)
    batcher = bench.start_batcher()
    closed, open_job = job_ref(1), job_ref(2)
    bench.requests.send(closed, 500)
    bench.requests.send(open_job, 500)
    until(lambda: max(replica.waiting.values(), default=0) == 1000)
    control = JobControl(closed.job_id, version=1, closed=CloseReason.CANCELLED)
    bench.requests.producer.send(
        CONTROL.name,
        encode(control),
        partition=0,
        key=closed.job_id.bytes,
        headers=kind_headers(JobControl),
    )
    bench.requests.producer.flush(40)
    until(lambda: max(replica.waiting.values()) == 500)
    bench.requests.send(closed, 100, first=500)
    replica.window = 400
    until(lambda: bench.lag() == 0)
    assert batcher.stop() == 0
    assert replica.items() == expected(open_job, 500)


def test_record_that_pins_an_offset_is_requeued_and_dispatched_later(bench: Bench) -> None:
    served = bench.start_replica()
    batcher = bench.start_batcher(hold_limit_s=1)
    # The other pool has no replica; a record pins offsets of its own partition only.
    tenant = tenant_sharing_partitions(POOL, "other")
    waiting, flowing = job_ref(1, tenant=tenant, pool="other"), job_ref(2, tenant=tenant)
    bench.requests.send(waiting, 100)
    bench.requests.send(flowing, 1000)
    until(lambda: len(served.items()) == 1000)
    # After one requeue it is behind all other records and pins nothing.
    until(lambda: record_count(bench.kafka) == 12)
    until(lambda: bench.lag() == 1)
    other = bench.start_replica(pool="other")
    until(lambda: len(other.items()) == 100)
    until(lambda: bench.lag() == 0)
    assert batcher.stop() == 0
    assert other.items() == expected(waiting, 100)
    assert record_count(bench.kafka) == 12


def test_finished_redelivered_items_are_not_executed_again(bench: Bench) -> None:
    job = job_ref(1)
    settings = DatabaseSettings(url=bench.database_url)  # type: ignore[arg-type]
    engine = create_engine(settings, application_name="test")
    DayPartitions(engine).ensure([job.day])
    ended = [*range(50), *range(200, 300)]
    rows = [
        {
            "job_id": job.job_id,
            "job_day": job.day,
            "item_index": index,
            "outcome": Outcome.SUCCEEDED,
            "status_code": 200,
            "attempt": 1,
            "input_tokens": 0,
            "output_tokens": 0,
            "cached_tokens": 0,
            "reasoning_tokens": 0,
        }
        for index in ended
    ]
    with engine.begin() as connection:
        connection.execute(sa.insert(item_rows), rows)
    engine.dispose()
    bench.requests.send(job, 400)  # before the assignment: it may have been dispatched before
    replica = bench.start_replica()
    batcher = bench.start_batcher()
    until(lambda: bench.lag() == 0)
    assert batcher.stop() == 0
    assert set(replica.items()) == {(UUID(int=1), n) for n in range(400) if n not in set(ended)}
