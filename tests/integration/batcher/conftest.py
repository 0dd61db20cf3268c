"""A log, its topics, and what a test starts on them."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.batcher.harness import POOL, Bench, create_topics
from topics.settings import KafkaSettings


@pytest.fixture
def bench(
    kafka_bootstrap: str, topic_prefix: str, database_url: str, tmp_path: Path
) -> Iterator[Bench]:
    kafka = KafkaSettings(bootstrap_servers=kafka_bootstrap, topic_prefix=topic_prefix)
    create_topics(kafka, POOL, "other")
    with ExitStack() as closing:
        yield Bench(kafka, database_url, tmp_path, closing)
