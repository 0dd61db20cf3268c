"""Goal: a producer that closes says how much of what it took nobody acknowledged."""

import logging
import time

import pytest
from confluent_kafka import KafkaError, KafkaException

from topics.errors import ProducerFatalError
from topics.producer import LogProducer
from topics.settings import KafkaSettings


@pytest.mark.parametrize("count", [0, 3])
def test_records_left_behind_are_told(count: int, caplog: pytest.LogCaptureFixture) -> None:
    nobody = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    producer = LogProducer(nobody, client_id="test")
    for _ in range(count):
        producer.send("results", b"x", partition=0)
    with caplog.at_level(logging.WARNING, logger="topics.producer"):
        producer.close(0.1)
        producer.close(0.1)

    told = [
        (r.getMessage(), vars(r)["count"]) for r in caplog.records if r.name == "topics.producer"
    ]
    assert told == ([("records were not delivered", count)] if count else [])


class FatalProducer:
    """librdkafka after the broker lost what it had acknowledged."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def produce(self, *_: object, **__: object) -> None:
        raise KafkaException(KafkaError(KafkaError._FATAL, "out of order"))

    def poll(self, timeout_s: float) -> None:
        time.sleep(timeout_s)

    def flush(self, _timeout_s: float) -> None:
        pass


def test_what_can_send_no_more_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.producer.Producer", FatalProducer)
    producer = LogProducer(KafkaSettings(bootstrap_servers="127.0.0.1:1"), client_id="test")
    with pytest.raises(ProducerFatalError):
        producer.send("results", b"x", partition=0)
    producer.close(1)
