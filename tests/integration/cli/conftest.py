"""Fixtures of all tests of the CLI."""

from collections.abc import Iterator

import pytest

from tests.support.cli_commands import commands_built_once


@pytest.fixture(scope="session", autouse=True)
def kept_commands() -> Iterator[None]:
    with commands_built_once():
        yield
