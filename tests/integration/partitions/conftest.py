"""Fixtures of tests with an unavailable partition."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.two_brokers import TwoBrokers, running_brokers
from topics.settings import KafkaSettings

DEAD = 3
"""The partition of each topic that is on the second broker."""


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoBrokers]:
    with running_brokers(tmp_path_factory.mktemp("brokers")) as brokers:
        yield brokers


@pytest.fixture
def kafka(brokers: TwoBrokers, topic_prefix: str) -> Iterator[KafkaSettings]:
    """The first broker, with short timeouts; the test creates the topics."""
    yield KafkaSettings(
        bootstrap_servers=brokers.address,
        topic_prefix=topic_prefix,
        delivery_timeout_s=2,
        partition_timeout_s=1,
        commit_interval_s=0.05,
    )
    brokers.thaw()


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    """Closes what a test has opened."""
    with ExitStack() as closing:
        yield closing
