"""Fixtures of tests of a replica."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.gpu_consumers.caller import Caller
from tests.integration.gpu_consumers.threaded_replica import POOL, ThreadedReplica
from topics.clients.admin import TopicAdmin
from topics.records.catalogue import pool_topics
from topics.settings import KafkaSettings


@pytest.fixture
def kafka(kafka: KafkaSettings) -> KafkaSettings:
    TopicAdmin(kafka).create(pool_topics(POOL))
    return kafka.model_copy(update={"commit_interval_s": 0.05})


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
