"""Goal: a producer that closes says how much of what it took nobody acknowledged."""

import logging

import pytest

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
