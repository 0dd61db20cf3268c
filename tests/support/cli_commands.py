"""The tree of commands of the CLI, built once for all tests of a process."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
from typer.main import get_command


@contextmanager
def commands_built_once() -> Iterator[None]:
    """Let `CliRunner` keep the tree: 20 ms of CPU, which it otherwise takes at each invocation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command))
        yield
