"""Data for people and for programs: aligned columns or JSON, on stdout."""

import codecs
import json
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import chain
from typing import Annotated, TypeAlias

import typer

from cli.os_errors import name_os_errors


class OutputFormat(StrEnum):
    """How data is written to stdout."""

    TABLE = "table"
    JSON = "json"


FormatOption: TypeAlias = Annotated[
    OutputFormat, typer.Option("--output", "-o", help="table for people, json for programs.")
]


def write_json(value: object) -> None:
    """Write `value` as indented JSON, keys in their own order; JSON's escapes but for UTF-8."""
    encoding = sys.stdout.encoding or "utf-8"
    is_plain = codecs.lookup(encoding).name == "utf-8"
    with name_os_errors("stdout"):
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=not is_plain) + "\n")


def write_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write aligned columns, never cut: a pipe reads the same as a person."""
    lines = [headers, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    write_rows(headers, rows, widths)


def write_rows(
    headers: Sequence[str], rows: Iterable[Sequence[str]], widths: Sequence[int]
) -> None:
    """Write columns of these widths, each row as it comes."""
    for line in chain([[header.upper() for header in headers]], rows):
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        with name_os_errors("stdout"):
            sys.stdout.write("  ".join(cells).rstrip() + "\n")
            sys.stdout.flush()
