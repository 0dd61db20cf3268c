"""Goal: docs/cli.md lists every command, and none that is gone."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from cli.main import app

PAGE = Path(__file__).parents[3] / "docs/cli.md"


def commands(group: Any, path: str) -> Iterator[str]:
    """Return the full name of every command below `group`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}"


def test_every_command_is_listed_once() -> None:
    listed = re.findall(r"^\| `(millrace [a-z -]+)` \|", PAGE.read_text(), re.M)

    assert sorted(listed) == sorted(commands(get_command(app), "millrace"))
