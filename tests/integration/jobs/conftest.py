"""Fixtures of job tests: a migrated database, own topics, an object store and input files."""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from jobs.validation.validation_process import ValidationProcesses
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import write_object
from tests.integration.jobs.retries import RetryProcess
from tests.integration.jobs.rows import input_line
from tests.integration.jobs.stores import Stores
from topics.clients.producer import RecordProducer
from topics.settings import KafkaSettings


@pytest.fixture(scope="session")
def roles() -> Collection[str]:
    return {"intake"}


@pytest.fixture
def objects(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "objects", clock=SystemClock())


@pytest.fixture
def store_lines(objects: LocalObjectStore) -> Callable[[str, int], None]:
    """Store an input file with a number of valid lines under a key."""

    def store(key: str, count: int) -> None:
        write_object(objects, key, b"".join(input_line(index) + b"\n" for index in range(count)))

    return store


@pytest.fixture(scope="session")
def processes() -> Iterator[ValidationProcesses]:
    """Validation processes that all tests use, as all jobs of an intake do."""
    processes = ValidationProcesses(SystemClock())
    yield processes
    processes.close()


@pytest.fixture
def stores(
    engine: sa.Engine, objects: LocalObjectStore, producer: RecordProducer, kafka: KafkaSettings
) -> Stores:
    return Stores(engine, objects, producer, kafka)


@pytest.fixture
def retries(stores: Stores, store_lines: Callable[[str, int], None]) -> RetryProcess:
    store_lines("in", 300)
    return RetryProcess(stores)
