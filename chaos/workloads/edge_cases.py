"""Edge-case items: poison items, unusual items that must succeed, and invalid lines."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from chaos.clients.client import input_lines
from chaos.installations.settings import NAN, POISON

_MB: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class EdgeCase:
    """The prompt of an item and its error code; None: it must succeed."""

    text: str
    code: str | None = None
    fields: Mapping[str, object] = field(default_factory=dict)  # further fields of its body


EDGE_CASES: Final[Mapping[str, EdgeCase]] = {
    **{fault: EdgeCase(f"POISON-{fault}", code) for fault, code in POISON.items()},
    NAN: EdgeCase(f"POISON-{NAN}"),
    "NUL in the prompt": EdgeCase("before\0after"),
    "stop string of 1 MB": EdgeCase("hello", fields={"stop": "s" * _MB}),
}

INVALID_LINES: Final[Mapping[int, str]] = {2: "invalid_json_line", 4: "line_too_long"}
"""Line of `invalid_file` to its error code."""

_LINES: Final = 5


def invalid_file(model: str) -> bytes:
    """Return a file with half of a surrogate pair in one line, and a 10 MB prompt in another."""
    content = input_lines(_LINES, model, {1: "half of a pair: \ud800", 3: "p" * 10 * _MB})
    assert json.dumps("\ud800").encode()[1:-1] in content, (
        "the surrogate must be escaped: it is not valid UTF-8"
    )
    return content
