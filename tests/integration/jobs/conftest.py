"""Fixtures of job tests: a migrated database, own topics, an object store and input files."""

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from storage.objects.local_object_store import LocalObjectStore
from tests.integration.jobs.retries import RetryProcess
from tests.integration.jobs.rows import input_line
from topics.clients.producer import RecordProducer
from topics.settings import KafkaSettings


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
