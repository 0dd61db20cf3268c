"""Fixtures of job tests: a migrated database, own topics, an object store and input files."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from core.clock import SystemClock
from storage.objects.local_object_store import LocalObjectStore
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings
from tests.integration.jobs.retries import RetryProcess
from tests.integration.jobs.rows import input_line
from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer
from topics.records.catalogue import SHARED_TOPICS
from topics.settings import KafkaSettings


@pytest.fixture
def database(database_url: str) -> DatabaseSettings:
    return DatabaseSettings(url=SecretStr(database_url))


@pytest.fixture
def engine(database: DatabaseSettings) -> Iterator[sa.Engine]:
    engine = create_engine(database, application_name="test")
    yield engine
    engine.dispose()


@pytest.fixture
def kafka(kafka_bootstrap: str, topic_prefix: str) -> KafkaSettings:
    settings = KafkaSettings(bootstrap_servers=kafka_bootstrap, topic_prefix=topic_prefix)
    TopicAdmin(settings).create(SHARED_TOPICS)
    return settings


@pytest.fixture
def objects(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "objects", clock=SystemClock())


@pytest.fixture
def store_lines(objects: LocalObjectStore) -> Callable[[str, int], None]:
    """Store an input file with a number of valid lines under a key."""

    def store(key: str, count: int) -> None:
        with objects.begin_upload(key) as upload:
            for index in range(count):
                upload.write(input_line(index) + b"\n")
            upload.complete()

    return store


@pytest.fixture
def retries(
    engine: sa.Engine,
    objects: LocalObjectStore,
    producer: RecordProducer,
    kafka: KafkaSettings,
    store_lines: Callable[[str, int], None],
) -> RetryProcess:
    store_lines("in", 300)
    return RetryProcess(engine, objects, producer, kafka)
