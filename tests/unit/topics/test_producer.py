"""Goal: flush and close report which records were acknowledged."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException

from topics.clients.producer import RecordProducer, close_producers
from topics.errors import DeliveryPendingError, ProducerFatalError
from topics.settings import KafkaSettings

NOBODY = KafkaSettings(bootstrap_servers="127.0.0.1:1")


@pytest.mark.parametrize("count", [0, 3])
def test_undelivered_records_are_logged_on_close(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    producer = RecordProducer(NOBODY, client_id="test")
    for _ in range(count):
        producer.send("results", b"x", partition=0)
    with caplog.at_level(logging.WARNING, logger="topics.clients.producer"):
        producer.close(0.1)
        producer.close(0.1)

    name = "topics.clients.producer"
    reports = [(r.getMessage(), vars(r)["count"]) for r in caplog.records if r.name == name]
    assert reports == ([("records were not delivered", count)] if count else [])


class AcknowledgingProducer:
    """librdkafka with a broker that acknowledges every record."""

    def __init__(self, *_: object, **__: object) -> None:
        self._reports: list[Callable[[None, Any], None]] = []

    def produce(self, *_: object, on_delivery: Callable[[None, Any], None], **__: object) -> None:
        self._reports.append(on_delivery)

    def poll(self, timeout_s: float) -> None:
        if self._reports:
            self._reports.pop(0)(None, None)
        else:
            threading.Event().wait(min(timeout_s, 0.001))

    def flush(self, _timeout_s: float) -> int:
        return 0


class FatalProducer(AcknowledgingProducer):
    """librdkafka after a fatal error."""

    def produce(self, *_: object, **__: object) -> None:
        raise KafkaException(KafkaError(KafkaError._FATAL, "out of order"))


def test_a_fatal_producer_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.clients.producer.Producer", FatalProducer)
    producer = RecordProducer(NOBODY, client_id="test")
    with pytest.raises(ProducerFatalError):
        producer.send("results", b"x", partition=0)
    producer.close(1)


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> RecordProducer:
    monkeypatch.setattr("topics.clients.producer.Producer", AcknowledgingProducer)
    return RecordProducer(NOBODY, client_id="test")


def test_flush_returns_after_every_delivery_callback(producer: RecordProducer) -> None:
    may_return = threading.Event()
    reports: list[BaseException | None] = []

    def on_delivery(failure: BaseException | None) -> None:
        assert may_return.wait(20)
        reports.append(failure)

    producer.send("results", b"x", partition=0, on_delivery=on_delivery)
    with pytest.raises(DeliveryPendingError):
        producer.flush(0.1)
    may_return.set()
    producer.flush(5)
    assert reports == [None]
    producer.close()


class UnavailableProducer(AcknowledgingProducer):
    """librdkafka with an unavailable broker."""

    given_s: ClassVar[list[float]] = []

    def flush(self, timeout_s: float) -> int:
        self.given_s.append(timeout_s)
        time.sleep(timeout_s)
        return 1


def test_producers_are_closed_within_one_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.clients.producer.Producer", UnavailableProducer)
    close_producers([RecordProducer(NOBODY, client_id=f"test-{n}") for n in range(4)], 0.2)
    assert len(UnavailableProducer.given_s) == 4
    assert sum(UnavailableProducer.given_s) <= 0.2


def test_a_failing_callback_does_not_block_flush(
    producer: RecordProducer, caplog: pytest.LogCaptureFixture
) -> None:
    reports: list[BaseException | None] = []

    def on_delivery(_: BaseException | None) -> None:
        raise RuntimeError("the loop is closed")

    producer.send("results", b"x", partition=0, on_delivery=on_delivery)
    producer.flush(5)
    producer.send("results", b"x", partition=0, on_delivery=reports.append)
    producer.flush(5)
    assert reports == [None]
    assert [record.getMessage() for record in caplog.records] == ["a delivery callback failed"]
    producer.close()
