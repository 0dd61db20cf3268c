"""Goal: an unavailable partition holds up its own records only, and gets no new work."""

import logging
import threading

import pytest

from tests.support.recording_sender import SentRecords
from topics import metrics
from topics.clients import partition_backlogs, tracked_sends
from topics.clients.partition_backlogs import PartitionBacklogs
from topics.clients.producer import OnDelivery
from topics.clients.tracked_sends import TrackedSends
from topics.errors import DeliveryError

DEAD, HEALTHY = ("results", 3), ("results", 4)


@pytest.fixture
def log() -> SentRecords:
    return SentRecords(acknowledges=True, unavailable={DEAD})


def send(log: SentRecords, *partitions: int, on_delivery: OnDelivery | None = None) -> TrackedSends:
    sends = TrackedSends(log)
    for partition in partitions:
        sends.send("results", b"x", partition=partition, on_delivery=on_delivery)
    return sends


def test_an_unavailable_partition_ends_the_wait_of_its_records_only(log: SentRecords) -> None:
    waiting, others = send(log, 1, 3), send(log, 1, 2)
    assert others.wait_unless_unavailable()
    assert not waiting.wait_unless_unavailable()
    assert not waiting.is_acknowledged
    log.restore()
    assert waiting.is_acknowledged


def test_a_wait_ends_with_the_last_acknowledgement(
    log: SentRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SentRecords, "is_unavailable", lambda *_: False)
    sends = send(log, 3)
    assert not sends.wait(0)
    timer = threading.Timer(0.01, log.restore)
    timer.start()
    assert sends.wait_unless_unavailable()
    timer.join()


def test_a_slow_partition_ends_the_wait_at_its_limit(
    log: SentRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SentRecords, "is_unavailable", lambda *_: False)
    monkeypatch.setattr(tracked_sends, "WAIT_S_MAX", 0.0)
    assert not send(log, 3).wait_unless_unavailable()


def test_a_failure_is_raised_and_reported(log: SentRecords) -> None:
    log.failure = DeliveryError("gone")
    reported: list[BaseException | None] = []
    sends = send(log, 1, on_delivery=reported.append)
    assert reported == [log.failure]
    with pytest.raises(DeliveryError, match="gone"):
        sends.wait_unless_unavailable()
    with pytest.raises(DeliveryError, match="gone"):
        assert sends.is_acknowledged


class Watch:
    """A clock that a test moves."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def backlogs(watch: Watch) -> PartitionBacklogs:
    return PartitionBacklogs(5.0, watch)


def test_a_partition_without_acknowledgement_is_unavailable_until_it_has_one(
    backlogs: PartitionBacklogs, watch: Watch
) -> None:
    backlogs.add(DEAD, 10)
    backlogs.add(DEAD, 10)
    watch.now_s += 4
    assert not backlogs.is_unavailable(DEAD)
    watch.now_s += 1
    assert backlogs.is_unavailable(DEAD)
    assert not backlogs.has_space(DEAD)
    assert not backlogs.is_unavailable(HEALTHY)
    assert backlogs.has_space(HEALTHY)
    backlogs.remove(DEAD, 10)
    assert not backlogs.is_unavailable(DEAD)
    assert backlogs.has_space(DEAD)


def test_a_partition_with_nothing_to_acknowledge_is_available(
    backlogs: PartitionBacklogs, watch: Watch
) -> None:
    backlogs.add(DEAD, 10)
    backlogs.remove(DEAD, 10)
    watch.now_s += 100
    assert not backlogs.is_unavailable(DEAD)
    backlogs.add(DEAD, 10)
    assert not backlogs.is_unavailable(DEAD)


@pytest.mark.parametrize(
    ("count", "byte_count"),
    [
        (1, partition_backlogs.PARTITION_BYTES_MAX),
        (partition_backlogs.PARTITION_RECORDS_MAX, 1),
    ],
)
def test_a_partition_has_a_part_of_the_queue(
    backlogs: PartitionBacklogs, count: int, byte_count: int
) -> None:
    for _ in range(count):
        assert backlogs.has_space(DEAD)
        backlogs.add(DEAD, byte_count)
    assert not backlogs.has_space(DEAD)
    assert backlogs.has_space(HEALTHY)
    backlogs.remove(DEAD, byte_count)
    assert backlogs.has_space(DEAD)


def test_no_partition_has_space_in_a_queue_that_is_nearly_full(
    backlogs: PartitionBacklogs,
) -> None:
    backlogs.add(DEAD, partition_backlogs.TOTAL_BYTES_MAX)
    assert not backlogs.has_space(HEALTHY)


def test_a_change_is_logged_once_and_the_metric_follows(
    backlogs: PartitionBacklogs, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gauge = metrics.PARTITION_UNAVAILABLE_SECONDS.labels("results", "3")
    backlogs.add(DEAD, 10)
    for _ in range(2):
        watch.now_s += 6
        backlogs.report_unavailable()
    assert gauge._value.get() == 12
    assert backlogs.unavailable() == [DEAD]
    backlogs.remove(DEAD, 10)
    for _ in range(2):
        backlogs.report_unavailable()
    assert gauge._value.get() == 0
    assert backlogs.unavailable() == []
    assert [record.getMessage() for record in caplog.records] == [
        "a partition is unavailable: its records wait",
        "a partition is available again",
    ]
