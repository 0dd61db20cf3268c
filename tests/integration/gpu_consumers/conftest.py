"""What tests of a replica share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.gpu_consumers.bench import POOL, Bench
from topics.admin import LogAdmin
from topics.catalogue import (
    CAPACITY,
    CONTROL,
    DEAD_LETTERS,
    DEMAND,
    REQUESTS_BULK,
    RESULTS,
    pool_topics,
)
from topics.settings import KafkaSettings


@pytest.fixture
def bench(kafka_bootstrap: str, topic_prefix: str, tmp_path: Path) -> Iterator[Bench]:
    kafka = KafkaSettings(
        bootstrap_servers=kafka_bootstrap, topic_prefix=topic_prefix, commit_interval_s=0.05
    )
    LogAdmin(kafka).create(
        [RESULTS, CONTROL, CAPACITY, DEMAND, DEAD_LETTERS, REQUESTS_BULK, *pool_topics(POOL)]
    )
    bench = Bench(kafka, tmp_path)
    yield bench
    bench.close()
