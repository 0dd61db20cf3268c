"""What tests of a replica share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.gpu_consumers.bench import POOL, Bench
from tests.integration.gpu_consumers.caller import Caller
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
def bench(kafka: KafkaSettings, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(kafka, tmp_path)
    yield bench
    bench.close()


@pytest.fixture
def online(kafka: KafkaSettings, tmp_path: Path) -> Iterator[Bench]:
    """A replica of both classes."""
    bench = Bench(kafka, tmp_path, "both")
    yield bench
    bench.close()


@pytest.fixture
def caller(kafka: KafkaSettings) -> Iterator[Caller]:
    caller = Caller(kafka)
    yield caller
    caller.close()
