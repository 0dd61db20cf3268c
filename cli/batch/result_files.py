"""Writes a job's files to local targets, which are checked before the job runs."""

import errno
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, TypeAlias

from cli.batch.file_download import copy_file
from cli.os_errors import naming_os_errors

if TYPE_CHECKING:
    import openai
    from openai.types import Batch

STDOUT: Final = Path("-")

FillTarget: TypeAlias = Callable[["openai.OpenAI", str | None], None]
"""Writes a file of the API to its target, empty without an id; raises as `copy_file`."""

SaveFiles: TypeAlias = Callable[["openai.OpenAI", "Batch"], None]
"""Writes the files of an ended job to their targets; raises as `copy_file`."""

_Copy: TypeAlias = Callable[[IO[bytes], str], None]
"""Copies one file of the API into a stream; its name is for messages. Raises as `copy_file`."""


@contextmanager
def open_targets(
    output: Path | None, errors: Path | None, *, quiet: bool = False
) -> Iterator[SaveFiles]:
    """Open the targets of a job's files; see `open_target`."""
    with ExitStack() as stack:
        fill_output = (
            None if output is None else stack.enter_context(open_target(output, quiet=quiet))
        )
        fill_errors = (
            None if errors is None else stack.enter_context(open_target(errors, quiet=quiet))
        )

        def save(client: "openai.OpenAI", batch: "Batch") -> None:
            if fill_output is not None:
                fill_output(client, batch.output_file_id)
            if fill_errors is not None:
                fill_errors(client, batch.error_file_id)

        yield save


@contextmanager
def open_target(target: Path, *, quiet: bool = False) -> Iterator[FillTarget]:
    """Check one target and yield a function that replaces it completely or not at all.

    The content is written to a temporary file in the same folder, with the mode of the target, and
    then renamed; a symbolic link is kept. A target that is not a regular file, like /dev/null, is
    written directly; `-` is stdout. Raises OSError for a target that cannot be written.
    """
    found = None if target == STDOUT else _status(target)
    copy = partial(copy_file, quiet=quiet)
    if target == STDOUT:
        yield lambda client, file_id: _to_stdout(partial(copy, client, file_id))
    elif found is not None and not stat.S_ISREG(found.st_mode):
        yield lambda client, file_id: _write_through(partial(copy, client, file_id), target)
    else:
        real = target.resolve()
        with naming_os_errors(str(target)), _temporary_file(real, found):
            pass  # a target that cannot be written fails before the job runs
        yield lambda client, file_id: _replace(partial(copy, client, file_id), target, found)


def save_file(client: "openai.OpenAI", file_id: str | None, target: Path) -> None:
    """Write a file of the API to `target`; see `open_target` and `copy_file`."""
    with open_target(target) as fill:
        fill(client, file_id)


def _status(target: Path) -> os.stat_result | None:
    """Return the status of a target, links followed, or None. Raises OSError, also for a folder."""
    try:
        found = target.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    return found


def _to_stdout(copy: _Copy) -> None:
    copy(sys.stdout.buffer, "stdout")
    with naming_os_errors("stdout"):
        sys.stdout.buffer.flush()


def _write_through(copy: _Copy, target: Path) -> None:
    with naming_os_errors(str(target)), target.open("wb") as sink:
        copy(sink, str(target))


def _replace(copy: _Copy, target: Path, found: os.stat_result | None) -> None:
    real = target.resolve()
    with naming_os_errors(str(target)), _temporary_file(real, found) as (sink, partial):
        copy(sink, str(target))
        sink.flush()
        os.fsync(sink.fileno())
        partial.replace(real)


@contextmanager
def _temporary_file(real: Path, found: os.stat_result | None) -> Iterator[tuple[IO[bytes], Path]]:
    """Create a temporary file in the folder of `real`; remove it unless it was renamed."""
    partial = real.with_name(f".millrace-{secrets.token_hex(8)}.partial")
    mode = 0o666 if found is None else stat.S_IMODE(found.st_mode)  # a new file: minus the umask
    number = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    sink = os.fdopen(number, "wb")
    try:
        if found is not None:
            with suppress(PermissionError):  # a file system without modes
                os.fchmod(number, mode)
        yield sink, partial
    finally:
        with suppress(OSError):  # a failed flush fails again
            sink.close()
        partial.unlink(missing_ok=True)
