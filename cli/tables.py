"""Data for people and for programs: aligned columns or JSON, on stdout."""

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, TypeAlias

import typer


class Form(StrEnum):
    """How data is written to stdout."""

    TABLE = "table"
    JSON = "json"


FormOption: TypeAlias = Annotated[
    Form, typer.Option("--output", "-o", help="table for people, json for programs.")
]


def write_json(value: object) -> None:
    """Write `value` as indented JSON, keys in their own order."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write aligned columns, never cut: a pipe reads the same as a person."""
    lines = [[header.upper() for header in headers], *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
