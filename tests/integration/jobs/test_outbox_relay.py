"""Goal: committed records reach the log in order, at least once."""

import random

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from core.ids import new_uuid
from core.limits import RECORD_BYTES_MAX
from core.states import JobState
from jobs.outbox_relay import CLAIM_MAX, OutboxRelay, backlog, claim_query, relay
from jobs.store.outbox import event_insert
from jobs.tables.outbox import outbox
from tests.integration.jobs.log_reader import records_of
from topics.clients.producer import RecordProducer
from topics.errors import DeliveryError, DeliveryPendingError
from topics.records.catalogue import EVENTS
from topics.records.codec import decode
from topics.records.records import JobEvent
from topics.settings import KafkaSettings

JOB_ID = new_uuid()


def add_events(engine: sa.Engine, count: int) -> None:
    with engine.begin() as connection:
        for number in range(count):
            connection.execute(event_insert(JOB_ID, JOB_ID, JobState.COMPLETED, float(number)))


def events(kafka: KafkaSettings) -> list[float]:
    return [decode(JobEvent, r.value, r.headers).at_s for r in records_of(kafka, EVENTS)]


def waiting(engine: sa.Engine) -> int:
    with engine.begin() as connection:
        return backlog(connection)[0]


def test_rows_reach_the_log_in_order(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> None:
    count = CLAIM_MAX + 20
    add_events(engine, count)
    with engine.begin() as connection:
        pending, age_s = backlog(connection)
    assert pending == count
    assert age_s >= 0
    OutboxRelay(engine, producer, SystemClock()).run_once()
    assert events(kafka) == [float(n) for n in range(count)]
    assert waiting(engine) == 0
    (first, *_) = records_of(kafka, EVENTS)
    assert first.key == JOB_ID.bytes


def test_a_crash_after_the_flush_sends_again(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> None:
    add_events(engine, 3)
    with engine.connect() as connection:
        assert relay(connection, producer) == 3
        connection.rollback()  # the process died before its commit
    assert waiting(engine) == 3
    OutboxRelay(engine, producer, SystemClock()).run_once()
    assert events(kafka) == [0.0, 1.0, 2.0] * 2
    assert waiting(engine) == 0


def test_a_short_broker_outage_sends_nothing_twice(
    engine: sa.Engine,
    kafka: KafkaSettings,
    producer: RecordProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_events(engine, 3)
    flush, waits = producer.flush, 0

    def unavailable_at_first(timeout_s: float | None = None) -> None:
        nonlocal waits
        waits += 1
        if waits <= 3:
            raise DeliveryPendingError
        flush(timeout_s)

    monkeypatch.setattr(producer, "flush", unavailable_at_first)
    OutboxRelay(engine, producer, SystemClock()).run_once()
    assert waits == 4
    assert events(kafka) == [0.0, 1.0, 2.0]
    assert waiting(engine) == 0


def test_rows_stay_if_the_log_rejects_them(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> None:
    add_events(engine, 1)
    with engine.begin() as connection:
        connection.execute(sa.update(outbox).values(partition=99))
    with pytest.raises(DeliveryError):
        OutboxRelay(engine, producer, SystemClock()).run_once()
    assert waiting(engine) == 1


def test_an_oversized_row_is_parked(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> None:
    add_events(engine, 3)
    with engine.begin() as connection:
        second = sa.select(sa.func.min(outbox.c.id) + 1).scalar_subquery()
        large = sa.update(outbox).where(outbox.c.id == second)
        connection.execute(large.values(value=b"x" * RECORD_BYTES_MAX))
    relay_ = OutboxRelay(engine, producer, SystemClock())
    relay_.run_once()
    add_events(engine, 1)
    relay_.run_once()
    assert events(kafka) == [0.0, 2.0, 0.0]
    assert waiting(engine) == 0
    with engine.connect() as connection:
        assert len(connection.execute(sa.select(outbox.c.id)).all()) == 1


def test_the_largest_permitted_row_is_sent(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> None:
    add_events(engine, 1)
    with engine.begin() as connection:
        body = random.Random(1).randbytes(RECORD_BYTES_MAX - 1100)  # incompressible
        connection.execute(sa.update(outbox).values(value=body))
    OutboxRelay(engine, producer, SystemClock()).run_once()
    (record,) = records_of(kafka, EVENTS)
    assert record.value == body


def test_one_relay_at_a_time(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> None:
    """Two would mix the order of a job's records."""
    add_events(engine, CLAIM_MAX + 1)
    with engine.begin() as first, engine.begin() as second:
        assert relay(first, producer) == CLAIM_MAX
        assert relay(second, producer) == 0
    assert waiting(engine) == 1


def test_claiming_uses_the_primary_key(engine: sa.Engine) -> None:
    query = claim_query(CLAIM_MAX).compile(engine, compile_kwargs={"literal_binds": True})
    with engine.begin() as connection:
        connection.execute(sa.text("SET LOCAL enable_seqscan = off"))
        plan = "\n".join(connection.scalars(sa.text(f"EXPLAIN {query}")))
    assert "pk_outbox" in plan
    assert "Sort" not in plan
