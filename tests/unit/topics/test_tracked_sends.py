"""Goal: the records of one owner are awaited apart from those of others."""

import threading

import pytest

from tests.support.recording_sender import SentRecords
from topics.clients import tracked_sends
from topics.clients.producer import OnDelivery
from topics.clients.tracked_sends import TrackedSends
from topics.errors import DeliveryError

DEAD = ("results", 3)


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
