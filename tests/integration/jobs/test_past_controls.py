"""Goal: control states that no record needs are deleted from `control`, once, and no others."""

import time
from contextlib import closing
from uuid import UUID

import pytest
from confluent_kafka import Producer

from jobs.recovery import past_controls
from jobs.recovery.past_controls import INTERVAL_S, PAST_MS, PastControls
from tests.support.clock import ManualClock
from topics.clients.producer import RecordProducer
from topics.records.catalogue import CONTROL
from topics.records.codec import encode, kind_headers
from topics.records.records import JobControl
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

NOW_MS = int(time.time() * 1000)
OLD_MS, NEW_MS = NOW_MS - PAST_MS - 1, NOW_MS - PAST_MS + 1
PAST, YOUNG, RENEWED, DELETED = (UUID(int=number) for number in range(1, 5))


def write(kafka: KafkaSettings, *records: tuple[UUID, int, bool]) -> None:
    """Write states of jobs, or tombstones, with given times."""
    writer = Producer(kafka.client_options())
    for version, (job_id, at_ms, is_state) in enumerate(records):
        writer.produce(
            kafka.topic_prefix + CONTROL.name,
            encode(JobControl(job_id, version)) if is_state else None,
            job_id.bytes,
            0,
            timestamp=at_ms,
            headers=kind_headers(JobControl),
        )
    assert not writer.flush(40)


def tombstones(kafka: KafkaSettings) -> list[bytes | None]:
    reader = TopicTailReader(kafka, CONTROL, client_id="test-reader")
    with closing(reader):
        return [record.key for record in reader.read_to_end(40) if record.value is None]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall_time_s=NOW_MS / 1000)


def test_only_past_states_are_deleted_and_only_once(
    kafka: KafkaSettings, producer: RecordProducer, clock: ManualClock
) -> None:
    write(
        kafka,
        (DELETED, OLD_MS, True),
        (PAST, OLD_MS, True),
        (RENEWED, OLD_MS, True),
        (DELETED, OLD_MS, False),
        (RENEWED, NEW_MS, True),
        (YOUNG, NEW_MS, True),
    )
    sweep = PastControls(kafka, producer, clock, first_run_s=1)
    sweep.run_once()
    assert tombstones(kafka) == [DELETED.bytes], "the first run is not due yet"
    clock.advance(1)
    sweep.run_once()
    assert tombstones(kafka) == [DELETED.bytes, PAST.bytes]
    clock.advance(INTERVAL_S)
    sweep.run_once()
    assert tombstones(kafka) == [DELETED.bytes, PAST.bytes]


def test_a_run_is_bounded_and_the_next_continues(
    kafka: KafkaSettings,
    producer: RecordProducer,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(past_controls, "KEYS_MAX", 2)
    jobs = [UUID(int=number) for number in range(3)]
    write(kafka, *((job_id, OLD_MS, True) for job_id in (*jobs, jobs[0])))
    sweep = PastControls(kafka, producer, clock, first_run_s=0)
    sweep.run_once()
    assert tombstones(kafka) == [job_id.bytes for job_id in jobs[:2]]
    clock.advance(INTERVAL_S)
    sweep.run_once()
    assert tombstones(kafka) == [job_id.bytes for job_id in jobs]
