"""Finds options that a version changes without naming them. Pure.

A version's options reach vLLM as a command line. If a value of one were read as another option, the
parsed arguments would differ from those without the version in more than what it names.
"""

from collections.abc import Collection, Mapping
from typing import Any


def unnamed_options(
    parsed: Mapping[str, Any], plain: Mapping[str, Any], *, named: Collection[str]
) -> list[str]:
    """Return the options outside `named` whose values differ, by name.

    `parsed` are vLLM's parsed arguments with a version's options, `plain` those without.
    """
    names = (parsed.keys() | plain.keys()) - set(named)
    return sorted(name for name in names if parsed.get(name) != plain.get(name))
