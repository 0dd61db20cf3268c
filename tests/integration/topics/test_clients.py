"""Goal: the Kafka clients keep their guarantees with a real broker."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import UUID

import pytest

from core.clock import SystemClock
from core.errors import SchemaTooNewError
from core.states import CloseReason
from tests.support.until import until
from topics.clients.admin import TopicAdmin
from topics.clients.consumer import GroupConsumer
from topics.clients.offset_tracker import Partition
from topics.clients.producer import RecordProducer
from topics.clients.start_check import OFFSETS_RETENTION_MINUTES, check_topics
from topics.errors import KafkaUnavailableError, StaleMemberError, TopicDriftError
from topics.records.catalogue import CONTROL, DAY_MS, RESULTS, Topic
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import JobControl
from topics.settings import KafkaSettings
from topics.tail_readers.job_controls import JobControlReader
from topics.tail_readers.topic_tail_reader import TopicTailReader


@pytest.fixture(params=["classic", "consumer"])
def settings(
    request: pytest.FixtureRequest, kafka_bootstrap: str, topic_prefix: str
) -> KafkaSettings:
    return KafkaSettings(
        bootstrap_servers=kafka_bootstrap, topic_prefix=topic_prefix, group_protocol=request.param
    )


@pytest.fixture
def producer(settings: KafkaSettings) -> Iterator[RecordProducer]:
    producer = RecordProducer(settings, client_id="test", linger_ms=1)
    yield producer
    producer.close()


def member(settings: KafkaSettings, topic: Topic, revoked: list[Partition]) -> GroupConsumer:
    return GroupConsumer(
        settings,
        group="readers",
        topics=[topic.name],
        client_id="test",
        on_assign=lambda _: None,
        on_revoke=revoked.extend,
    )


def join(first: GroupConsumer, settings: KafkaSettings) -> GroupConsumer:
    """Return a second member, which has got half of the partitions of `first`."""
    second = member(settings, RESULTS, [])

    def has_half() -> bool:
        first.poll(1, 0.05)
        second.poll(1, 0.05)
        return len(second.assigned) >= 4

    until(has_half)
    return second


def poll_until(
    consumer: GroupConsumer, enough: Callable[[list[ReceivedRecord]], bool]
) -> list[ReceivedRecord]:
    records: list[ReceivedRecord] = []

    def is_enough() -> bool:
        records.extend(consumer.poll(100, 0.2))
        return enough(records)

    until(is_enough)
    return records


def test_records_are_read_with_key_headers_and_offset(
    settings: KafkaSettings, producer: RecordProducer
) -> None:
    assert TopicAdmin(settings).create([RESULTS]) == [settings.topic_prefix + "results"]
    for n in range(300):
        producer.send("results", b"%d" % n, partition=n % 8, key=b"k", headers=[("kind", b"test")])
    producer.flush(40)
    consumer = member(settings, RESULTS, [])
    records = poll_until(consumer, lambda found: len(found) >= 300)
    assert sorted(int(r.value or b"") for r in records) == list(range(300))
    assert {(r.topic, r.key, tuple(r.headers)) for r in records} == {
        ("results", b"k", (("kind", b"test"),))
    }
    assert consumer.end_offsets(consumer.assigned) == {
        ("results", p): 38 if p < 4 else 37 for p in range(8)
    }
    consumer.commit({("results", p): 20 for p in range(8)})
    consumer.close()
    lag = TopicAdmin(settings).lag("readers", RESULTS)
    assert sum(lag.values()) == 300 - 160


def test_drift_names_each_difference(settings: KafkaSettings) -> None:
    admin = TopicAdmin(settings)
    assert admin.drift([RESULTS]) == [f"{settings.topic_prefix}results: missing"]
    admin.create([RESULTS, CONTROL])
    assert admin.create([RESULTS]) == []
    assert admin.drift([RESULTS, CONTROL]) == []
    check_topics(admin, [RESULTS, CONTROL], broker_wait_s=10)
    assert (admin.offsets_retention_minutes() or 0) >= OFFSETS_RETENTION_MINUTES
    other = Topic(
        name="results",
        records=RESULTS.records,
        key="job",
        partition_count=9,
        ordering="",
        written_by=(),
        read_by=(),
        retention_days=1,
    )
    drift = admin.drift([other])
    assert [line.split(": ")[1].split(" ")[0] for line in drift] == ["8", "retention.ms"]
    with pytest.raises(TopicDriftError, match="8 partitions, the catalogue says 9"):
        check_topics(admin, [other], broker_wait_s=10)


def test_retention_of_prompts_and_answers_is_applied(settings: KafkaSettings) -> None:
    TopicAdmin(settings).create([RESULTS, CONTROL])
    shorter = TopicAdmin(settings.model_copy(update={"retention_days": 3}))
    name = f"{settings.topic_prefix}results"
    (told,) = shorter.drift([RESULTS, CONTROL])
    assert told == f"{name}: retention.ms is {37 * DAY_MS}, the catalogue says {3 * DAY_MS}"

    shorter.apply_body_retention([RESULTS, CONTROL])
    until(lambda: not shorter.drift([RESULTS, CONTROL]))  # the broker may apply it a moment later
    assert TopicAdmin(settings).create([RESULTS, CONTROL]) == []  # as a replica does
    assert shorter.drift([RESULTS, CONTROL]) == []


def test_options_of_an_earlier_release_are_brought_up_to_date(settings: KafkaSettings) -> None:
    admin = TopicAdmin(settings)
    admin.create([replace(CONTROL, options={})])
    (told,) = admin.drift([CONTROL])
    assert told.startswith(f"{settings.topic_prefix}control: segment.ms is ")

    admin.apply_body_retention([CONTROL])
    assert admin.drift([CONTROL]) == [told]
    admin.apply_configuration([CONTROL])
    until(lambda: not admin.drift([CONTROL]))  # the broker may apply it a moment later


@pytest.mark.parametrize("poll_interval_s", [0.0, 0.05])
def test_a_tail_reader_reads_to_the_end_and_then_new_records(
    settings: KafkaSettings, producer: RecordProducer, poll_interval_s: float
) -> None:
    TopicAdmin(settings).create([CONTROL])
    tail = TopicTailReader(settings, CONTROL, client_id="tail", poll_interval_s=poll_interval_s)
    late = TopicTailReader(settings, CONTROL, client_id="late")
    assert tail.read_to_end(40) == []
    for values in ([b"0", b"1", b"2"], [b"3"]):
        late.seek_to_end(40)
        assert late.has_read(late.end_offsets(10))
        for value in values:
            producer.send("control", value, partition=0, key=b"k" + value)
        producer.flush(40)
        assert not late.has_read(late.end_offsets(10))
        assert [r.value for r in tail.read_to_end(40)] == values
    ends = late.end_offsets(10)
    until(lambda: late.poll(0.5) and late.has_read(ends))
    tail.close()
    late.close()


def test_partitions_move_when_a_member_joins_and_only_owners_commit(
    settings: KafkaSettings, producer: RecordProducer
) -> None:
    TopicAdmin(settings).create([RESULTS])
    revoked: list[Partition] = []
    first = member(settings, RESULTS, revoked)
    poll_until(first, lambda _: len(first.assigned) == 8)
    second = join(first, settings)
    assert len(revoked) == 4
    assert first.assigned.isdisjoint(second.assigned)
    stale = min(revoked)
    first.commit({stale: 5})  # not ours any more: left out, not an error
    second.commit(dict.fromkeys(second.assigned, 0))
    first.close()
    second.close()
    assert StaleMemberError().disposition.value == "retry"


def test_a_paused_partition_is_resumed_by_its_next_assignment(
    settings: KafkaSettings, producer: RecordProducer
) -> None:
    TopicAdmin(settings).create([RESULTS])
    moved: list[Partition] = []
    first = member(settings, RESULTS, moved)
    poll_until(first, lambda _: len(first.assigned) == 8)
    first.pause(first.assigned)
    second = join(first, settings)
    second.close()
    poll_until(first, lambda _: len(first.assigned) == 8)
    for n in range(8):
        producer.send("results", b"%d" % n, partition=n)
    producer.flush(40)

    records = poll_until(first, lambda found: len(found) >= len(moved))
    assert sorted(("results", r.partition) for r in records) == sorted(moved)  # others stay paused
    first.resume(first.assigned)
    poll_until(first, lambda found: len(records + found) == 8)
    first.close()


def test_a_member_waits_for_a_topic_that_is_created_late(
    settings: KafkaSettings, producer: RecordProducer
) -> None:
    consumer = member(settings, RESULTS, [])
    until(lambda: not consumer.poll(1, 0.1) and consumer._missing._missing_since_s)
    TopicAdmin(settings).create([RESULTS])
    producer.send("results", b"late", partition=0)
    producer.flush(40)
    assert [r.value for r in poll_until(consumer, bool)] == [b"late"]
    consumer.close()


def test_a_member_fails_for_a_topic_that_stays_missing(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.clients.missing_topics.MISSING_TOPIC_S_MAX", 1.0)
    consumer = member(settings, RESULTS, [])
    with pytest.raises(KafkaUnavailableError, match="results"):
        poll_until(consumer, lambda _: False)
    consumer.close()


def test_job_controls_are_read_and_the_failure_of_the_thread_is_raised(
    settings: KafkaSettings, producer: RecordProducer
) -> None:
    TopicAdmin(settings).create([CONTROL])
    closed = JobControlReader(settings, client_id="closed", clock=SystemClock())
    closed.start(40)
    assert not closed.is_closed(UUID(int=1))
    job_id = UUID(int=2)
    control = JobControl(job_id=job_id, version=1, closed=CloseReason.CANCELLED)
    headers = kind_headers(JobControl)
    producer.send("control", encode(control), partition=0, key=job_id.bytes, headers=headers)
    until(lambda: closed.is_closed(job_id))
    producer.send("control", None, partition=0, key=job_id.bytes, headers=headers)
    until(lambda: not closed.is_closed(job_id))
    newer_control = [("kind", b"control"), ("schema", b"99")]
    producer.send("control", b"", partition=0, key=b"k", headers=newer_control)
    producer.flush(40)
    closed._thread._thread.join(20)
    with pytest.raises(SchemaTooNewError):
        closed.is_closed(UUID(int=1))
    closed.stop()
