"""Fixtures: a database and topics for each test."""

from collections.abc import Collection
from pathlib import Path

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from storage.objects.local_object_store import LocalObjectStore
from storage.postgres.settings import DatabaseSettings
from tests.integration.results.job_log import JobLog
from topics.clients.producer import RecordProducer
from topics.settings import KafkaSettings


@pytest.fixture(scope="session")
def roles() -> Collection[str]:
    return {"results-writer", "intake"}


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "objects", clock=SystemClock())


@pytest.fixture
def log(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer, database: DatabaseSettings
) -> JobLog:
    return JobLog(engine, kafka, producer, database)
