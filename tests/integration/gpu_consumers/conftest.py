"""Fixtures of tests of a replica."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.gpu_consumers.caller import Caller
from tests.integration.gpu_consumers.threaded_replica import POOL, ThreadedReplica
from topics.clients.admin import TopicAdmin
from topics.records.catalogue import (
    ATTEMPTS,
    CALLERS,
    CAPACITY,
    CONTROL,
    DEAD_LETTERS,
    DEMAND,
    REPLIES,
    REQUESTS_BULK,
    REQUESTS_INTERACTIVE,
    RESULTS,
    pool_topics,
)
from topics.settings import KafkaSettings

_TOPICS = (
    RESULTS,
    REPLIES,
    CALLERS,
    CONTROL,
    CAPACITY,
    DEMAND,
    ATTEMPTS,
    DEAD_LETTERS,
    REQUESTS_BULK,
    REQUESTS_INTERACTIVE,
    *pool_topics(POOL),
)


@pytest.fixture
def kafka(kafka_bootstrap: str, topic_prefix: str) -> KafkaSettings:
    settings = KafkaSettings(
        bootstrap_servers=kafka_bootstrap, topic_prefix=topic_prefix, commit_interval_s=0.05
    )
    TopicAdmin(settings).create(_TOPICS)
    return settings


@pytest.fixture
def replica(kafka: KafkaSettings, tmp_path: Path) -> Iterator[ThreadedReplica]:
    """A replica of class bulk."""
    replica = ThreadedReplica(kafka, tmp_path)
    yield replica
    replica.close()


@pytest.fixture
def online(kafka: KafkaSettings, tmp_path: Path) -> Iterator[ThreadedReplica]:
    """A replica of both classes."""
    replica = ThreadedReplica(kafka, tmp_path, "both")
    yield replica
    replica.close()


@pytest.fixture
def caller(kafka: KafkaSettings) -> Iterator[Caller]:
    caller = Caller(kafka)
    yield caller
    caller.close()
