"""Goal: on a real log the writer counts every outcome once, despite crashes and redelivery."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from uuid import UUID

import sqlalchemy as sa

from core.clock import SystemClock
from core.errors import MillraceError, SchemaTooNewError
from core.states import CloseReason
from results.metrics import DATABASE_RETRIES
from results.settings import WriterSettings
from results.writer.call_billing import write_bills
from results.writer.copied_results import CopyWriter
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from results.writer.job_closer import JobCloser
from results.writer.writer import GROUP, OutcomeRouter, ResultsWriter
from storage.postgres.engines import DATABASE_UNAVAILABLE
from tests.integration.results.outcomes import (
    add_running_job,
    assert_totals_agree,
    item_table,
    job,
    job_ref,
    new_engine,
    outcome,
)
from tests.support.until import until
from topics.clients.admin import TopicAdmin
from topics.clients.consumer import GroupConsumer
from topics.clients.producer import RecordProducer
from topics.records.catalogue import DEAD_LETTERS, RESULTS
from topics.records.codec import decode, encode, kind_headers
from topics.records.partitioner import job_partition
from topics.records.records import CopiesDue, DeadLetter, JobClose, Outcomes
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

DEADLINE_S = 30


class Running:
    """A writer in a thread."""

    def __init__(self, engine: sa.Engine, kafka: KafkaSettings, **settings: float) -> None:
        partitions = DayPartitions(engine)
        self.producer = RecordProducer(kafka, client_id="writer")
        self.writer = ResultsWriter(
            router=OutcomeRouter(
                items=ItemWriter(engine, partitions),
                closes=JobCloser(engine, partitions, slice_items=10),
                copies=CopyWriter(engine, slice_items=7),
            ),
            bill=partial(write_bills, engine),
            producer=self.producer,
            settings=WriterSettings.model_validate(settings),
            commit_interval_s=0.05,
            clock=SystemClock(),
        )
        self.consumer = GroupConsumer(
            kafka,
            group=GROUP,
            topics=[RESULTS.name],
            client_id="writer",
            on_assign=lambda _: None,
            on_revoke=self.writer.on_revoke,
        )
        self.stop = threading.Event()
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.writer.run(self.consumer, self.stop)
        except MillraceError as failure:
            self.failure = failure
        except DATABASE_UNAVAILABLE as failure:
            self.failure = failure


@contextmanager
def running(engine: sa.Engine, kafka: KafkaSettings, **settings: float) -> Iterator[Running]:
    role = Running(engine, kafka, **settings)
    role.thread.start()
    try:
        yield role
    finally:
        role.stop.set()
        role.thread.join(DEADLINE_S)
        role.consumer.close()
        role.producer.close()


def send(producer: RecordProducer, job_id: UUID, record: Outcomes | JobClose | CopiesDue) -> None:
    producer.send(
        RESULTS.name,
        encode(record),
        partition=job_partition(job_id, RESULTS.partition_count),
        key=job_id.bytes,
        headers=kind_headers(type(record)),
    )


def send_items(producer: RecordProducer, job_id: UUID, indexes: range) -> None:
    send(producer, job_id, Outcomes(job_ref(job_id), [outcome(index) for index in indexes]))


def lag(kafka: KafkaSettings) -> int:
    return sum(TopicAdmin(kafka).lag(GROUP, RESULTS).values())


def test_offsets_are_committed_after_jobs_settle(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> None:
    job_ids = [add_running_job(engine, 100) for _ in range(5)]
    for start in range(0, 100, 20):
        for job_id in job_ids:
            send_items(producer, job_id, range(start, start + 20))
            send_items(producer, job_id, range(start, start + 20))
    producer.flush(10)

    with running(engine, kafka):
        until(lambda: all(job(engine, job_id)["settled_at"] for job_id in job_ids))
        until(lambda: lag(kafka) == 0)

    for job_id in job_ids:
        assert_totals_agree(engine, job_id)


def test_outcomes_after_a_close_do_not_count(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> None:
    job_id = add_running_job(engine, 60, state="cancelling", close_reason="cancelled")
    send_items(producer, job_id, range(20))
    send(producer, job_id, JobClose(job_id, 0, CloseReason.CANCELLED))
    send_items(producer, job_id, range(60))
    producer.flush(10)

    with running(engine, kafka):
        until(lambda: job(engine, job_id)["settled_at"])
        until(lambda: lag(kafka) == 0)

    rows = item_table(engine, job_id)
    assert [row.outcome for row in rows] == [1] * 20 + [3] * 40
    assert_totals_agree(engine, job_id)


def test_unreadable_record_goes_to_the_dead_letters(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> None:
    job_id = add_running_job(engine, 2)
    partition = job_partition(job_id, RESULTS.partition_count)
    send_items(producer, job_id, range(1))
    producer.send(
        RESULTS.name, b"\xc1", partition=partition, headers=kind_headers(Outcomes), key=b"k"
    )
    send_items(producer, job_id, range(1, 2))
    producer.flush(10)

    with running(engine, kafka):
        until(lambda: job(engine, job_id)["settled_at"])
        until(lambda: lag(kafka) == 0)

    tail = TopicTailReader(kafka, DEAD_LETTERS, client_id="test")
    (found,) = tail.read_to_end(10)
    tail.close()
    letter = decode(DeadLetter, found.value, found.headers)
    assert (letter.topic, letter.partition, letter.offset) == (RESULTS.name, partition, 1)
    assert (letter.value, letter.key) == (b"\xc1", b"k")


def test_newer_schema_stops_the_role_before_its_offset(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> None:
    producer.send(
        RESULTS.name, b"", partition=0, headers=[("kind", b"outcomes"), ("schema", b"99")]
    )
    producer.flush(10)

    with running(engine, kafka) as role:
        role.thread.join(DEADLINE_S)

    assert isinstance(role.failure, SchemaTooNewError)
    assert lag(kafka) == 1


def test_rebalances_and_kills_change_no_rows(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> None:
    job_ids = [add_running_job(engine, 200) for _ in range(8)]

    def send_all() -> None:
        for start in range(0, 200, 5):
            for job_id in job_ids:
                send_items(producer, job_id, range(start, start + 5))
            producer.flush(10)

    sending = threading.Thread(target=send_all)
    sending.start()
    with running(engine, kafka, group_items_max=20):
        for _ in range(3):
            with running(engine, kafka, group_items_max=20) as guest:
                until(lambda g=guest: g.consumer.assigned)  # type: ignore[misc]
        sending.join()
        until(lambda: all(job(engine, job_id)["settled_at"] for job_id in job_ids))

    for job_id in job_ids:
        assert_totals_agree(engine, job_id)


def test_writer_waits_for_an_unavailable_database(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> None:
    """A lock longer than the lock timeout simulates it."""
    job_id = add_running_job(engine, 10)
    send_items(producer, job_id, range(5))
    producer.flush(10)

    @sa.event.listens_for(engine, "connect")
    def set_lock_timeout(connection: object, _record: object) -> None:
        connection.execute("SET lock_timeout = '100ms'")  # type: ignore[attr-defined]
        connection.commit()  # type: ignore[attr-defined]

    engine.dispose()
    retries = DATABASE_RETRIES._value.get()
    with engine.begin() as locking:
        locking.execute(sa.text("LOCK TABLE job_counters"))
        with running(engine, kafka):
            send_items(producer, job_id, range(5, 10))
            producer.flush(10)
            until(lambda: DATABASE_RETRIES._value.get() >= retries + 3)
            locking.rollback()
            until(lambda: job(engine, job_id)["settled_at"])
            until(lambda: lag(kafka) == 0)

    assert_totals_agree(engine, job_id)


def test_writer_ends_without_commit_when_the_database_stays_unavailable(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> None:
    job_id = add_running_job(engine, 10)
    send_items(producer, job_id, range(5))
    producer.flush(10)
    nowhere = new_engine("postgresql://127.0.0.1:1/none")

    with running(nowhere, kafka, database_wait_s=0.5) as role:
        role.thread.join(DEADLINE_S)

    assert isinstance(role.failure, DATABASE_UNAVAILABLE)
    assert lag(kafka) == 1
