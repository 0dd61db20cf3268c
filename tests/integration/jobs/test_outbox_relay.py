"""Goal: committed records reach the log in order, at least once."""

import random

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from core.ids import new_uuid
from core.limits import RECORD_BYTES_MAX
from core.states import JobState
from jobs.outbox_relay import CLAIM_MAX, OutboxRelay, backlog, relay
from jobs.store.outbox import event_insert
from jobs.tables.outbox import outbox
from tests.integration.jobs.log_reader import records_of
from tests.integration.jobs.rows import execute
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


def test_a_crash_after_the_flush_sends_again(site: Site) -> None:
    site.add_events(3)
    with site.engine.connect() as connection:
        assert relay(connection, site.producer) == 3
        connection.rollback()  # the process died before its commit
    assert site.pending() == 3
    site.relay.run_once()
    assert site.events() == [0.0, 1.0, 2.0] * 2


def test_a_short_broker_outage_sends_nothing_twice(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_events(3)
    flush, waits = site.producer.flush, 0

    def unavailable_at_first(timeout_s: float | None = None) -> None:
        nonlocal waits
        waits += 1
        if waits <= 3:
            raise DeliveryPendingError
        flush(timeout_s)

    monkeypatch.setattr(site.producer, "flush", unavailable_at_first)
    site.relay.run_once()
    assert waits == 4
    assert site.events() == [0.0, 1.0, 2.0]


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


def test_one_relay_at_a_time(site: Site) -> None:
    """Two would mix the order of a job's records."""
    site.add_events(CLAIM_MAX + 1)
    with site.engine.begin() as first, site.engine.begin() as second:
        assert relay(first, site.producer) == CLAIM_MAX
        assert relay(second, site.producer) == 0
    assert site.pending() == 1
