"""One stack with the simulated engine for all end-to-end tests of a session."""

from collections.abc import Iterator

import pytest

from tests.support.stacks import Stack, running_stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running stack whose items take 20 ms, 64 at once: jobs last long enough to meddle."""
    data = tmp_path_factory.mktemp("stack")
    options = ("--simulated-latency-ms", "20", "--simulated-concurrency", "64")
    with running_stack(data, *options) as running:
        yield running
