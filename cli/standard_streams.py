"""The standard streams of a command: all three are there, take every character and end whole."""

import io
import os
import sys
from contextlib import suppress
from typing import Final, TextIO

import typer

from cli.os_errors import name_os_errors

_ERRORS: Final = {"stdin": "replace", "stdout": "backslashreplace", "stderr": "backslashreplace"}


def prepare_streams() -> None:
    """Let no character fail, and put /dev/null where a stream was closed.

    What the encoding of stdout or stderr lacks is written as its escape; what is typed in another
    encoding than stdin's is read as U+FFFD.
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
    """Write what stdout still holds. Raises OSError: what is left is dropped then."""
    try:
        with name_os_errors("stdout"):
            sys.stdout.flush()
    except OSError:
        _drop(sys.stdout)
        raise


def write_last_line(message: str) -> None:
    """Write the last line to stderr; without a place for it, the exit code speaks alone."""
    try:
        typer.echo(message, err=True)
    except OSError:
        _drop(sys.stderr)


def _drop(stream: TextIO) -> None:
    """Send what the stream holds nowhere: the interpreter's own flush would fail, and exit 120."""
    with suppress(OSError):  # a stream that is no file
        number = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)
