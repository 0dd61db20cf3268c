"""The stacks that the clients of this folder talk to."""

from collections.abc import Iterator

import pytest

from tests.sdk.sites import OTHER_MODEL
from tests.stacks import Stack, running_stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running stack of two simulated models that answer in 5 ms."""
    data = tmp_path_factory.mktemp("stack")
    options = ("--simulated-latency-ms", "5", "--model", "simulated", "--model", OTHER_MODEL)
    with running_stack(data, *options) as running:
        yield running
