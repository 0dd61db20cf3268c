"""Fixtures: a database and topics for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from core.clock import SystemClock
from storage.objects.local_object_store import LocalObjectStore
from storage.postgres.settings import DatabaseSettings
from tests.integration.results.job_log import JobLog
from tests.integration.results.outcomes import new_engine
from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer
from topics.records.catalogue import DEAD_LETTERS, RESULTS
from topics.settings import KafkaSettings


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    engine = new_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def kafka(kafka_bootstrap: str, topic_prefix: str) -> KafkaSettings:
    settings = KafkaSettings(bootstrap_servers=kafka_bootstrap, topic_prefix=topic_prefix)
    TopicAdmin(settings).create([RESULTS, DEAD_LETTERS])
    return settings


@pytest.fixture
def database(database_url: str) -> DatabaseSettings:
    return DatabaseSettings(url=SecretStr(database_url), pool_size=4)


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "objects", clock=SystemClock())


@pytest.fixture
def log(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer, database: DatabaseSettings
) -> JobLog:
    return JobLog(engine, kafka, producer, database)
