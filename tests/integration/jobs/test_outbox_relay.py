"""Goal: committed records reach the log in order, at least once."""

import random
from typing import cast

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from core.ids import new_uuid
from core.limits import RECORD_BYTES_MAX
from core.states import JobState
from jobs.outbox_relay import CLAIM_MAX, OutboxRelay, backlog
from jobs.store.outbox import event_insert
from storage.postgres.outbox import outbox
from tests.integration.jobs.log_reader import records_of
from tests.integration.jobs.rows import execute
from tests.support.recording_sender import SentRecords
from topics.clients.producer import RecordProducer
from topics.errors import DeliveryError, DeliveryPendingError
from topics.records.catalogue import EVENTS
from topics.records.codec import decode
from topics.records.records import JobEvent
from topics.settings import KafkaSettings

JOB_ID = new_uuid()


class Site:
    """An outbox of events, its relay and the log."""

    def __init__(self, engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer) -> None:
        self.engine, self.kafka, self.producer = engine, kafka, producer
        self.relay = OutboxRelay(engine, producer, SystemClock())

    def add_events(self, count: int) -> None:
        with self.engine.begin() as connection:
            for number in range(count):
                connection.execute(event_insert(JOB_ID, JOB_ID, JobState.COMPLETED, float(number)))

    def events(self) -> list[float]:
        """Return the numbers of the events on the log."""
        return [decode(JobEvent, r.value, r.headers).at_s for r in records_of(self.kafka, EVENTS)]

    def pending(self) -> int:
        with self.engine.begin() as connection:
            return backlog(connection)[0]


@pytest.fixture
def site(engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer) -> Site:
    return Site(engine, kafka, producer)


def test_rows_reach_the_log_in_order(site: Site) -> None:
    count = CLAIM_MAX + 20
    site.add_events(count)
    with site.engine.begin() as connection:
        pending, age_s = backlog(connection)
    assert pending == count
    assert age_s >= 0
    site.relay.run_once()
    assert site.events() == [float(n) for n in range(count)]
    assert site.pending() == 0
    (first, *_) = records_of(site.kafka, EVENTS)
    assert first.key == JOB_ID.bytes


def test_a_crash_after_the_acknowledgement_sends_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_events(3)
    with monkeypatch.context() as patched:
        patched.setattr(sa, "delete", lambda _: 1 / 0)  # the process dies before its commit
        with pytest.raises(ZeroDivisionError):
            site.relay.run_once()
    assert site.pending() == 3
    site.relay.run_once()
    assert site.events() == [0.0, 1.0, 2.0] * 2


def test_rows_of_an_unavailable_partition_wait_and_others_go_on(
    site: Site, engine: sa.Engine
) -> None:
    log = SentRecords(acknowledges=True)
    relay = OutboxRelay(engine, cast(RecordProducer, log), SystemClock())
    dead = JOB_ID.int % EVENTS.partition_count
    site.add_events(3)
    execute(site.engine, sa.update(outbox).values(partition=(dead + 1) % EVENTS.partition_count))
    site.add_events(2)
    log.unavailable = {(EVENTS.name, dead)}
    relay.run_once()
    assert site.pending() == 2
    site.add_events(2)
    execute(site.engine, sa.update(outbox).where(outbox.c.id > 6).values(partition=dead + 1))
    relay.run_once()
    assert site.pending() == 3
    assert len(log.records) == 5  # one of the partition, and none that could overtake it

    other = SentRecords(acknowledges=True)
    OutboxRelay(engine, cast(RecordProducer, other), SystemClock()).run_once()
    assert other.records == []  # it would mix the order of a job's records

    log.restore()
    relay.run_once()
    assert site.pending() == 0
    numbers = [
        decode(JobEvent, record.value, record.headers).at_s
        for record in log.records
        if record.partition == dead
    ]
    assert numbers == [0.0, 1.0, 0.0]
    site.add_events(1)
    OutboxRelay(engine, cast(RecordProducer, other), SystemClock()).run_once()
    assert len(other.records) == 1


def test_a_relay_that_lost_its_lock_ends_with_its_records(site: Site, engine: sa.Engine) -> None:
    log = SentRecords(acknowledges=True, unavailable={(EVENTS.name, n) for n in range(4)})
    relay = OutboxRelay(engine, cast(RecordProducer, log), SystemClock())
    site.add_events(1)
    relay.run_once()
    execute(
        site.engine,
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    with pytest.raises(DeliveryPendingError):
        relay.run_once()


def test_rows_stay_if_the_log_rejects_them(site: Site) -> None:
    site.add_events(1)
    execute(site.engine, sa.update(outbox).values(partition=99))
    with pytest.raises(DeliveryError):
        site.relay.run_once()
    assert site.pending() == 1


def test_an_oversized_row_is_parked(site: Site) -> None:
    site.add_events(3)
    second = sa.select(sa.func.min(outbox.c.id) + 1).scalar_subquery()
    large = sa.update(outbox).where(outbox.c.id == second)
    execute(site.engine, large.values(value=b"x" * RECORD_BYTES_MAX))
    site.relay.run_once()
    site.add_events(1)
    site.relay.run_once()
    assert site.events() == [0.0, 2.0, 0.0]
    assert site.pending() == 0
    with site.engine.connect() as connection:
        assert len(connection.execute(sa.select(outbox.c.id)).all()) == 1


def test_the_largest_permitted_row_is_sent(site: Site) -> None:
    site.add_events(1)
    body = random.Random(1).randbytes(RECORD_BYTES_MAX - 1100)  # incompressible
    execute(site.engine, sa.update(outbox).values(value=body))
    site.relay.run_once()
    (record,) = records_of(site.kafka, EVENTS)
    assert record.value == body
