"""Fixtures of job tests: a migrated database, own topics, an object store and input files."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from core.clock import SystemClock
from storage.objects.local_object_store import LocalObjectStore
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings
from tests.integration.jobs.retries import RetryProcess
from tests.integration.jobs.rows import add_running_job, add_tenant, input_line
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
def add_open_job(engine: sa.Engine, store_lines: Callable[[str, int], None]) -> Callable[..., UUID]:
    """Add a job of 300 items that were all emitted."""
    store_lines("in", 300)

    def add(*, tenant_id: UUID | None = None, **columns: Any) -> UUID:
        cursor = {"item_index": 300, "byte_offset": 1, "line_number": 300}
        with engine.begin() as connection:
            tenant = tenant_id or add_tenant(connection)
            return add_running_job(connection, tenant, 300, cursor=cursor, **columns)

    return add


@pytest.fixture
def retries(
    engine: sa.Engine, objects: LocalObjectStore, producer: RecordProducer, kafka: KafkaSettings
) -> RetryProcess:
    return RetryProcess(engine, objects, producer, kafka)
