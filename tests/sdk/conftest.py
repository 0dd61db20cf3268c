"""The stack of the client tests."""

from collections.abc import Iterator

import pytest

from tests.sdk.checks.site import RATE_TOKENS
from tests.sdk.sites import OTHER_MODEL, add_idle_model
from tests.support.stacks import Stack, running_stack


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running stack of two simulated models, and a third without a replica."""
    data = tmp_path_factory.mktemp("stack")
    times = ("--simulated-latency-ms", "50", "--simulated-token-ms", "2")
    models = ("--model", "simulated", "--model", OTHER_MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_ONLINE_TOKENS_PER_MINUTE", str(RATE_TOKENS))
        with running_stack(data, *times, *models, "--allow-private-webhooks") as running:
            add_idle_model(running)
            yield running
