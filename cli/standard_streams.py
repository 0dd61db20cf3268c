"""Prepares stdin, stdout and stderr for any character, and names files in errors of I/O."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, TextIO

import typer

_ERROR_HANDLERS: Final = {
    "stdin": "replace",
    "stdout": "backslashreplace",
    "stderr": "backslashreplace",
}


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
