"""Prepares a command's standard streams and flushes them at its end."""

import io
import os
import sys
from contextlib import suppress
from typing import Final, TextIO

import typer

from cli.os_errors import naming_os_errors

_ERRORS: Final = {"stdin": "replace", "stdout": "backslashreplace", "stderr": "backslashreplace"}


def prepare_streams() -> None:
    """Make every character writable and readable, and replace closed streams by /dev/null.

    Characters that the encoding of stdout or stderr lacks are written as escapes. Bytes of stdin in
    another encoding are read as U+FFFD.
    """
    for name, errors in _ERRORS.items():
        stream = getattr(sys, name)
        if stream is None:
            mode = "r" if name == "stdin" else "w"
            null = open(os.devnull, mode, encoding="utf-8", errors=errors)  # noqa: PTH123, SIM115
            setattr(sys, name, null)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def flush_stdout() -> None:
    """Flush stdout. Raises OSError and then discards the buffered output."""
    try:
        with naming_os_errors("stdout"):
            sys.stdout.flush()
    except OSError:
        _discard(sys.stdout)
        raise


def write_last_line(message: str) -> None:
    """Write the last line to stderr; ignore errors, as the exit code still reports the failure."""
    try:
        typer.echo(message, err=True)
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Redirect a stream to /dev/null: the interpreter's own flush would fail with exit code 120."""
    with suppress(OSError):  # a stream without a file
        number = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)
