"""Distributes tests over the workers of pytest-xdist, so that they share expensive fixtures."""

from pathlib import PurePath, PurePosixPath

from xdist.scheduler import LoadFileScheduling

LONGEST = (
    *("e2e/test_vllm_engine", "e2e/test_demo", "e2e/test_vllm_pooling"),
    *("e2e/test_model_registry", "e2e/test_vllm_clients"),
    *("gpu_consumers/test_poison", "topics/test_clients", "webhooks/test_receivers"),
)
"""Files that take long, and their folders. They run first: no worker starts one at the end."""

ENGINES = frozenset({"test_vllm_engine", "test_vllm_pooling"})
"""Files whose classes start an engine each."""

SHARED_STACK = frozenset(
    f"test_{name}"
    for name in (
        *("bulk_job", "cli_batch", "dead_letters", "durable_call", "identical_items"),
        *("kill_each_role", "long_calls", "readiness", "views", "webhooks", "zero_retention"),
    )
)
"""The end-to-end files that use the shared stack.

One worker runs all of them after the longest files: a second stack takes as much CPU as a minute of
tests to start, and a quarter of a core from then on. The stack stops after the last of them.
"""

VLLM_STACK = frozenset({"test_model_registry", "test_vllm_clients"})
"""The end-to-end files that use the stack of real vLLM. One worker runs both."""

TWO_BROKERS = "/integration/partitions/"
"""The folder whose files use a cluster of two brokers. One worker runs all of them: another cluster
takes as much CPU to start as a hundred tests.
"""


def rank_of(file: PurePath) -> int:
    """Return the place of a test file in the order of a run.

    The files of `TWO_BROKERS` take one worker two minutes, so they start with the longest files.
    """
    if TWO_BROKERS in file.as_posix():
        return 0
    if (name := f"{file.parent.name}/{file.stem}") in LONGEST:
        return LONGEST.index(name)
    return len(LONGEST) + (file.stem not in SHARED_STACK)


class FixtureScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """All tests of a file run in one worker, with exceptions.

    Each class of `ENGINES` is a unit. The files of `SHARED_STACK` are one unit together, and so are
    those of `VLLM_STACK` and those of `TWO_BROKERS`.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, *names = nodeid.split("::")
        stem = PurePosixPath(file).stem
        if stem in SHARED_STACK and "/e2e/" in f"/{file}":
            return "shared stack"
        if stem in VLLM_STACK:
            return "vLLM stack"
        if TWO_BROKERS in f"/{file}":
            return "two brokers"
        if stem in ENGINES and len(names) > 1:
            return f"{file}::{names[0]}"
        return file
