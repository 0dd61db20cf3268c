"""Writes command output to stdout as an aligned table or as JSON."""

import codecs
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from itertools import chain
from typing import Annotated, TypeAlias

import typer

from cli.standard_streams import name_os_errors


class OutputFormat(StrEnum):
    """The format of the data on stdout."""

    TABLE = "table"
    JSON = "json"


FormatOption: TypeAlias = Annotated[
    OutputFormat, typer.Option("--output", "-o", help="table for people, json for programs.")
]


def write_output(
    output_format: OutputFormat,
    value: object,
    headers: Sequence[str],
    rows: Callable[[], Sequence[Sequence[str]]],
) -> None:
    """Write `value` as JSON, or the rows that `rows` returns as a table."""
    if output_format is OutputFormat.JSON:
        write_json(value)
    else:
        write_table(headers, rows())


def write_json(value: object) -> None:
    """Write indented JSON in key order. Escapes non-ASCII unless stdout is UTF-8."""
    encoding = sys.stdout.encoding or "utf-8"
    is_utf8 = codecs.lookup(encoding).name == "utf-8"
    with name_os_errors("stdout"):
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=not is_utf8) + "\n")


def write_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write aligned columns. Cells are never truncated, on a terminal or in a pipe."""
    lines = [headers, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    write_rows(headers, rows, widths)


def write_rows(
    headers: Sequence[str], rows: Iterable[Sequence[str]], widths: Sequence[int]
) -> None:
    """Write columns of fixed widths and flush after each row."""
    for line in chain([[header.upper() for header in headers]], rows):
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        with name_os_errors("stdout"):
            sys.stdout.write("  ".join(cells).rstrip() + "\n")
            sys.stdout.flush()


def print_next_page(after: str) -> None:
    """Write the option that lists the next page to stderr."""
    typer.echo(f"more: --after {after}", err=True)
