"""Fixtures that integration tests of several packages share."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from topics.clients.producer import RecordProducer
from topics.settings import KafkaSettings


@pytest.fixture
def producer(kafka: KafkaSettings) -> Iterator[RecordProducer]:
    """A producer on the log that the package's own `kafka` fixture names."""
    producer = RecordProducer(kafka, client_id="test", linger_ms=1)
    yield producer
    producer.close()


@pytest.fixture
def connection(database_url: str) -> Iterator[sa.Connection]:
    """One transaction on the migrated database, committed at the end of the test."""
    engine = sa.create_engine(database_url)
    with engine.begin() as opened:
        yield opened
    engine.dispose()
