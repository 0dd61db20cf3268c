"""Targets of downloaded files: checked for writing first, replaced atomically later."""

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
"""Downloads a file of the API to its target, an empty file for None; raises as `download_file`."""

DownloadJobFiles: TypeAlias = Callable[["openai.OpenAI", "Batch"], None]
"""Downloads the files of a job to their targets; raises as `download_file`."""

_Write: TypeAlias = Callable[[IO[bytes], str], None]
"""Writes one file of the API to a stream, called by that name in errors."""


@contextmanager
def open_targets(
    output: Path | None, errors: Path | None, *, quiet: bool = False
) -> Iterator[DownloadJobFiles]:
    """Check the targets of a job's files and yield their download; see `open_target`."""
    with ExitStack() as stack:
        downloads = [
            None if target is None else stack.enter_context(open_target(target, quiet=quiet))
            for target in (output, errors)
        ]

        def download_files(client: "openai.OpenAI", batch: "Batch") -> None:
            file_ids = (batch.output_file_id, batch.error_file_id)
            for download, file_id in zip(downloads, file_ids, strict=True):
                if download is not None:
                    download(client, file_id)

        yield download_files


@contextmanager
def open_target(target: Path, *, quiet: bool = False) -> Iterator[DownloadFile]:
    """Check that `target` can be written and yield the download that replaces it atomically.

    The download goes to a new file in the same folder, with the permissions of the file that it
    replaces; a link remains a link. Targets that are not regular files, such as /dev/null, are
    written directly; `-` is stdout. Raises OSError when the target cannot be written.
    """
    status = None if target == STDOUT else _status(target)
    download = partial(download_file, quiet=quiet)
    if target == STDOUT:
        yield lambda client, file_id: _write_stdout(partial(download, client, file_id))
    elif status is not None and not stat.S_ISREG(status.st_mode):
        yield lambda client, file_id: _write_direct(partial(download, client, file_id), target)
    else:
        with name_os_errors(str(target)), _temporary_file(target.resolve(), status):
            pass  # fails now rather than after the wait for the job
        yield lambda client, file_id: _replace(partial(download, client, file_id), target, status)


def download_to(client: "openai.OpenAI", file_id: str | None, target: Path) -> None:
    """Download a file of the API to `target`; see `open_target` and `download_file`."""
    with open_target(target) as download:
        download(client, file_id)


def _status(target: Path) -> os.stat_result | None:
    """Return the status of the target, behind links, or None. Raises OSError, also for a folder."""
    try:
        status = target.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    return status


def _write_stdout(write: _Write) -> None:
    write(sys.stdout.buffer, "stdout")
    with name_os_errors("stdout"):
        sys.stdout.buffer.flush()


def _write_direct(write: _Write, target: Path) -> None:
    with name_os_errors(str(target)), target.open("wb") as sink:
        write(sink, str(target))


def _replace(write: _Write, target: Path, status: os.stat_result | None) -> None:
    real = target.resolve()
    with name_os_errors(str(target)), _temporary_file(real, status) as (sink, temporary):
        write(sink, str(target))
        sink.flush()
        os.fsync(sink.fileno())
        temporary.replace(real)


@contextmanager
def _temporary_file(real: Path, status: os.stat_result | None) -> Iterator[tuple[IO[bytes], Path]]:
    """Create a file in the folder of `real`, removed at the end unless it was renamed."""
    temporary = real.with_name(f".millrace-{secrets.token_hex(8)}.partial")
    mode = 0o666 if status is None else stat.S_IMODE(status.st_mode)  # new: less the umask
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    sink = os.fdopen(descriptor, "wb")
    try:
        if status is not None:
            with suppress(PermissionError):  # a file system without permissions
                os.fchmod(descriptor, mode)
        yield sink, temporary
    finally:
        with suppress(OSError):  # the buffer cannot be written now if it could not before
            sink.close()
        temporary.unlink(missing_ok=True)
