"""Writes data to stdout as aligned columns or as JSON."""

import codecs
import json
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import chain
from typing import Annotated, TypeAlias

import typer

from cli.os_errors import naming_os_errors


class OutputFormat(StrEnum):
    """The format of data on stdout."""

    TABLE = "table"
    JSON = "json"


OutputFormatOption: TypeAlias = Annotated[
    OutputFormat, typer.Option("--output", "-o", help="table for people, json for programs.")
]


def write_json(value: object) -> None:
    """Write indented JSON with keys in order; escape non-ASCII unless stdout is UTF-8."""
    encoding = sys.stdout.encoding or "utf-8"
    is_plain = codecs.lookup(encoding).name == "utf-8"
    with naming_os_errors("stdout"):
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=not is_plain) + "\n")


def write_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write aligned columns, never truncated, also to pipes."""
    lines = [headers, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    write_rows(headers, rows, widths)


def write_rows(
    headers: Sequence[str], rows: Iterable[Sequence[str]], widths: Sequence[int]
) -> None:
    """Write each row at once, in columns of fixed widths."""
    for line in chain([[header.upper() for header in headers]], rows):
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        with naming_os_errors("stdout"):
            sys.stdout.write("  ".join(cells).rstrip() + "\n")
            sys.stdout.flush()
