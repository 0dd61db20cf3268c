"""Writes command output as a table or as JSON, to standard streams that accept any character."""

import codecs
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from itertools import chain
from typing import Annotated, Final, TextIO, TypeAlias

import typer

_ERROR_HANDLERS: Final = {
    "stdin": "replace",
    "stdout": "backslashreplace",
    "stderr": "backslashreplace",
}


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


def prepare_streams() -> None:
    """Set lenient error handlers, and open /dev/null for each closed stream.

    Characters that stdout or stderr cannot encode are written as escapes. Bytes of stdin that
    cannot be decoded are read as U+FFFD.
    """
    for name, errors in _ERROR_HANDLERS.items():
        stream = getattr(sys, name)
        if stream is None:
            mode = "r" if name == "stdin" else "w"
            null = open(os.devnull, mode, encoding="utf-8", errors=errors)  # noqa: PTH123, SIM115
            setattr(sys, name, null)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


@contextmanager
def name_os_errors(filename: str) -> Iterator[None]:
    """Set `filename`, a path of the user or a stream, on each OSError that the block raises."""
    try:
        yield
    except OSError as failure:
        if failure.errno is None:
            raise
        raise OSError(failure.errno, failure.strerror, filename) from failure


def flush_stdout() -> None:
    """Flush stdout. Discards the rest of the buffer and raises OSError when that fails."""
    try:
        with name_os_errors("stdout"):
            sys.stdout.flush()
    except OSError:
        _discard_buffer(sys.stdout)
        raise


def write_last_line(message: str) -> None:
    """Write the final line to stderr. A failure is ignored: the exit code still reports it."""
    try:
        typer.echo(message, err=True)
    except OSError:
        _discard_buffer(sys.stderr)


def _discard_buffer(stream: TextIO) -> None:
    """Redirect the stream to /dev/null, or the interpreter's own flush fails with exit code 120."""
    with suppress(OSError):  # the stream has no file descriptor
        number = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)
