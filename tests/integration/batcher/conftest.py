"""A log, its topics, and batcher processes that end with their test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.batcher.harness import (
    POOL,
    BatcherProcess,
    Caller,
    Replica,
    Requests,
    create_topics,
)
from topics.settings import KafkaSettings


@pytest.fixture
def kafka(kafka_bootstrap: str, topic_prefix: str) -> KafkaSettings:
    settings = KafkaSettings(bootstrap_servers=kafka_bootstrap, topic_prefix=topic_prefix)
    create_topics(settings, POOL, "other")
    return settings


@pytest.fixture
def requests(kafka: KafkaSettings) -> Iterator[Requests]:
    requests = Requests(kafka)
    yield requests
    requests.producer.close()


@pytest.fixture
def calls(kafka: KafkaSettings) -> Iterator[Requests]:
    requests = Requests(kafka, "interactive")
    yield requests
    requests.producer.close()


@pytest.fixture
def caller(kafka: KafkaSettings) -> Iterator[Caller]:
    caller = Caller(kafka, "api-1")
    yield caller
    caller.stop()


@pytest.fixture
def start_replica(kafka: KafkaSettings) -> Iterator[Callable[..., Replica]]:
    started: list[Replica] = []

    def start(**options: object) -> Replica:
        started.append(Replica(kafka, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for replica in started:
        replica.stop()


@pytest.fixture
def start_batcher(
    kafka: KafkaSettings, database_url: str, tmp_path: Path
) -> Iterator[Callable[..., BatcherProcess]]:
    started: list[BatcherProcess] = []

    def start(**settings: object) -> BatcherProcess:
        log = tmp_path / f"batcher-{len(started)}.log"
        started.append(BatcherProcess(kafka, database_url, log, **settings))
        return started[-1]

    yield start
    for process in started:
        process.end()
