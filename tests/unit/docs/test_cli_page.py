"""Goal: docs/cli.md lists every command, and none that is gone."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from cli.main import app

PAGE = Path(__file__).parents[3] / "docs/cli.md"


def commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Return every command below `group` with its full name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def test_every_command_is_listed_once() -> None:
    listed = re.findall(r"^\| `(millrace [a-z -]+)` \|", PAGE.read_text(), re.M)

    assert sorted(listed) == sorted(name for name, _ in commands(get_command(app), "millrace"))


def test_help_speaks_to_users() -> None:
    """What a function raises is said to whoever calls it, not to whoever types its name."""
    told = [name for name, c in commands(get_command(app), "millrace") if "Raises" in c.help]

    assert told == []
