"""Places for the files of a job here: found usable before they are needed, and filled or left."""

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

from cli.batch.resumable_download import download_file
from cli.os_errors import name_os_errors

if TYPE_CHECKING:
    import openai
    from openai.types import Batch

STDOUT: Final = Path("-")

DownloadFile: TypeAlias = Callable[["openai.OpenAI", str | None], None]
"""Writes a file of the API, an empty one without an id, to its place; raises as `download_file`."""

DownloadJobFiles: TypeAlias = Callable[["openai.OpenAI", "Batch"], None]
"""Writes the files of a job that has ended to their places; raises as `download_file`."""

_Copy: TypeAlias = Callable[[IO[bytes], str], None]
"""Copies one file of the API into what the user calls by that name; raises as `download_file`."""


@contextmanager
def open_targets(
    output: Path | None, errors: Path | None, *, quiet: bool = False
) -> Iterator[DownloadJobFiles]:
    """Make room for the files of a job where they are wanted; see `open_target`."""
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
def open_target(target: Path, *, quiet: bool = False) -> Iterator[DownloadFile]:
    """Make room for one file and yield what fills it: `target` is replaced whole or not at all.

    The content goes to a new file beside it, with the rights of the one that it replaces; a link
    stays one. What is no regular file, like /dev/null, is written to as it is; `-` is stdout.
    Raises OSError for a target that cannot be written.
    """
    found = None if target == STDOUT else _status(target)
    copy = partial(download_file, quiet=quiet)
    if target == STDOUT:
        yield lambda client, file_id: _to_stdout(partial(copy, client, file_id))
    elif found is not None and not stat.S_ISREG(found.st_mode):
        yield lambda client, file_id: _write_through(partial(copy, client, file_id), target)
    else:
        real = target.resolve()
        with name_os_errors(str(target)), _new_beside(real, found):
            pass  # whether it can be written is known before it is waited for
        yield lambda client, file_id: _replace(partial(copy, client, file_id), target, found)


def download_to(client: "openai.OpenAI", file_id: str | None, target: Path) -> None:
    """Write a file of the API to `target`; see `open_target` and `download_file`."""
    with open_target(target) as fill:
        fill(client, file_id)


def _status(target: Path) -> os.stat_result | None:
    """Return what lies there, behind links, or None. Raises OSError, of a folder too."""
    try:
        found = target.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    return found


def _to_stdout(copy: _Copy) -> None:
    copy(sys.stdout.buffer, "stdout")
    with name_os_errors("stdout"):
        sys.stdout.buffer.flush()


def _write_through(copy: _Copy, target: Path) -> None:
    with name_os_errors(str(target)), target.open("wb") as sink:
        copy(sink, str(target))


def _replace(copy: _Copy, target: Path, found: os.stat_result | None) -> None:
    real = target.resolve()
    with name_os_errors(str(target)), _new_beside(real, found) as (sink, partial):
        copy(sink, str(target))
        sink.flush()
        os.fsync(sink.fileno())
        partial.replace(real)


@contextmanager
def _new_beside(real: Path, found: os.stat_result | None) -> Iterator[tuple[IO[bytes], Path]]:
    """Make a file that nobody else has in the folder of `real`; it goes unless it is renamed."""
    partial = real.with_name(f".millrace-{secrets.token_hex(8)}.partial")
    rights = 0o666 if found is None else stat.S_IMODE(found.st_mode)  # new: less the umask
    number = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, rights)
    sink = os.fdopen(number, "wb")
    try:
        if found is not None:
            with suppress(PermissionError):  # of a file system without rights
                os.fchmod(number, rights)
        yield sink, partial
    finally:
        with suppress(OSError):  # what could not be written cannot now
            sink.close()
        partial.unlink(missing_ok=True)
