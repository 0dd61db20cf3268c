"""The stacks that end-to-end files share: one of the simulated engine, and one of real vLLM."""

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.e2e.registry_stack import Registry, running_registry
from tests.support.distribution import SHARED_STACK, VLLM_STACK
from tests.support.stacks import Stack, running_stack

FAILING_TEXT = "poison"
"""The simulated engine answers items with this text with 500."""

_OPTIONS = (
    *("--simulated-latency-ms", "20", "--simulated-concurrency", "64"),
    "--allow-private-webhooks",
)
_ENV = {
    "MILLRACE_ENGINE_SIMULATED_FAULTS": json.dumps(
        [{"contains": FAILING_TEXT, "fault": "error500"}]
    ),
    "MILLRACE_WRITER_RETRY_BACKOFF_S": "0.2",
}

_CLEANUPS = pytest.StashKey[dict[frozenset[str], ExitStack]]()
"""What ends the stacks that files share, by the stems of the files."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop a shared stack after its last test: an idle stack takes a quarter of a core."""
    for files, cleanup in item.session.stash.get(_CLEANUPS, {}).items():
        if nextitem is None or nextitem.path.stem not in files:
            cleanup.close()


@pytest.fixture(scope="session")
def shared_stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """A running stack whose items take 20 ms, 64 at once, so that jobs last for a while.

    It stops after the last test of the files of `SHARED_STACK`.
    """
    with ExitStack() as cleanup:
        request.session.stash.setdefault(_CLEANUPS, {})[SHARED_STACK] = cleanup
        with pytest.MonkeyPatch.context() as patch:  # for the start alone
            for name, value in _ENV.items():
                patch.setenv(name, value)
            running = running_stack(tmp_path_factory.mktemp("stack"), *_OPTIONS)
            stack = cleanup.enter_context(running)
        yield stack


@pytest.fixture(scope="session")
def registry(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Registry]:
    """A running stack of real vLLM; it stops after the last test of the files of `VLLM_STACK`."""
    with ExitStack() as cleanup:
        request.session.stash.setdefault(_CLEANUPS, {})[VLLM_STACK] = cleanup
        yield cleanup.enter_context(running_registry(tmp_path_factory.mktemp("registry")))


@pytest.fixture(scope="session")
def stack(shared_stack: Stack) -> Stack:
    """The shared stack; a file may have a stack of its own instead."""
    return shared_stack


@pytest.fixture
def env(stack: Stack) -> dict[str, str]:
    """The environment of a user of `stack`."""
    return {"MILLRACE_URL": stack.url, "MILLRACE_KEY": stack.key}
