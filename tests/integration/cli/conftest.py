"""Commands that are built once: for each invocation that would take 20 ms of CPU."""

from collections.abc import Iterator
from functools import cache

import pytest
import typer.main


@pytest.fixture(scope="session", autouse=True)
def commands_built_once() -> Iterator[None]:
    """Let `CliRunner` keep the commands of the application."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(typer.main.get_command))
        yield
