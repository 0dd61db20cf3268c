"""What tests of several rooms ask the log for."""

from collections.abc import Iterator

import pytest

from topics.clients.producer import RecordProducer
from topics.settings import KafkaSettings


@pytest.fixture
def producer(kafka: KafkaSettings) -> Iterator[RecordProducer]:
    """A producer on the log that the room's own `kafka` names."""
    producer = RecordProducer(kafka, client_id="test", linger_ms=1)
    yield producer
    producer.close()
