"""Fixtures that integration tests of several packages share."""

from collections.abc import Iterator

import pytest

from topics.clients.producer import RecordProducer
from topics.settings import KafkaSettings


@pytest.fixture
def producer(kafka: KafkaSettings) -> Iterator[RecordProducer]:
    """A producer on the log that the package's own `kafka` fixture names."""
    producer = RecordProducer(kafka, client_id="test", linger_ms=1)
    yield producer
    producer.close()
