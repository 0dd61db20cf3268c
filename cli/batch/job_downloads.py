"""Downloads the files of a job: targets are checked first, and replaced atomically at the end.

Interrupted downloads are resumed with range requests.
"""

import errno
import os
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import IO, Final, TypeAlias

import typer

from cli.api_client import Batch, Client, transient_errors
from cli.batch.job_progress import UNAVAILABLE_S_MAX
from cli.exits import CommandError
from cli.output import name_os_errors

STDOUT: Final = Path("-")
_PAUSE_S: Final = 1.0

DownloadJobFiles: TypeAlias = Callable[[Client, Batch], None]
"""Downloads the files of a job to their targets; raises as `download_file`."""


class DownloadInterruptedError(CommandError):
    """The download was interrupted."""


def check_targets(
    output: Path | None, errors: Path | None, *, quiet: bool = False
) -> DownloadJobFiles:
    """Check the targets of a job's files and return their download. Raises OSError."""
    targets = [None if path is None else DownloadTarget(path) for path in (output, errors)]

    def download_files(client: Client, batch: Batch) -> None:
        file_ids = (batch.output_file_id, batch.error_file_id)
        for target, file_id in zip(targets, file_ids, strict=True):
            if target is not None:
                target.download(client, file_id, quiet=quiet)

    return download_files


class DownloadTarget:
    """A file that a download replaces atomically; a link remains a link.

    Targets that are not regular files, such as /dev/null, are written directly; `-` is stdout.
    """

    def __init__(self, path: Path) -> None:
        """Check that `path` can be written. Raises OSError."""
        self._path = path
        self._name = "stdout" if path == STDOUT else str(path)
        self._status = None if path == STDOUT else _status(path)
        self._is_direct = self._status is not None and not stat.S_ISREG(self._status.st_mode)
        if path != STDOUT and not self._is_direct:
            with name_os_errors(self._name), _temporary_file(path.resolve(), self._status):
                pass  # fails now rather than after the wait for the job

    def download(self, client: Client, file_id: str | None, *, quiet: bool = False) -> None:
        """Download a file of the API, an empty file for None; raises as `download_file`."""
        with self._open_sink() as sink:
            download_file(client, file_id, sink, self._name, quiet=quiet)

    @contextmanager
    def _open_sink(self) -> Iterator[IO[bytes]]:
        """Yield a file that becomes the target when the block succeeds."""
        if self._path == STDOUT:
            yield sys.stdout.buffer
            with name_os_errors(self._name):
                sys.stdout.buffer.flush()
        elif self._is_direct:
            with name_os_errors(self._name), self._path.open("wb") as sink:
                yield sink
        else:
            real = self._path.resolve()
            with (
                name_os_errors(self._name),
                _temporary_file(real, self._status) as (sink, temporary),
            ):
                yield sink
                sink.flush()
                os.fsync(sink.fileno())
                temporary.replace(real)


def download_file(
    client: Client, file_id: str | None, sink: IO[bytes], name: str, *, quiet: bool = False
) -> None:
    """Stream a file of the API into `sink`, called `name` in errors; nothing for None.

    After a transient error it requests the rest, until no byte has arrived for
    `UNAVAILABLE_S_MAX`, and prints that on stderr unless `quiet`. Raises OSError,
    DownloadInterruptedError, and the errors of the client.
    """
    import openai

    if file_id is None:
        return
    download = _Download(client.with_options(max_retries=0), file_id, sink, name)
    received_bytes, received_at_s, is_reported = 0, time.monotonic(), False
    while True:
        last_error: Exception | None = None
        try:
            download.request_rest()
        except transient_errors() as error:
            last_error = error
        if download.is_complete:
            return
        if download.received_bytes > received_bytes:
            received_bytes, received_at_s = download.received_bytes, time.monotonic()
        if time.monotonic() - received_at_s > UNAVAILABLE_S_MAX:
            if isinstance(last_error, openai.APIError):
                raise last_error
            raise download.interrupted()
        if not (quiet or is_reported):
            note = f"{download.interrupted()} Retrying for {UNAVAILABLE_S_MAX:.0f} s."
            typer.echo(note, err=True)
            is_reported = True
        time.sleep(_PAUSE_S)


class _Download:
    """The state of one download."""

    def __init__(self, client: Client, file_id: str, sink: IO[bytes], name: str) -> None:
        self._client, self._file_id, self._sink, self._name = client, file_id, sink, name
        self._size_bytes: int | None = None  # until the file's object is retrieved
        self._etag = ""
        self.received_bytes = 0

    @property
    def is_complete(self) -> bool:
        """Whether all bytes have arrived."""
        return self.received_bytes == self._size_bytes

    def request_rest(self) -> None:
        """Request and write the missing bytes. Raises the errors of `download_file`."""
        if self._size_bytes is None:
            self._size_bytes = self._client.files.retrieve(self._file_id).bytes
        if self.is_complete:
            return
        headers = {"accept-encoding": "identity"}  # ranges count encoded bytes
        if self.received_bytes:
            headers["range"] = f"bytes={self.received_bytes}-"
            if self._etag:
                headers["if-range"] = self._etag
        request = self._client.files.with_streaming_response.content(
            self._file_id, extra_headers=headers
        )
        with request as response:
            if self.received_bytes and not self._is_rest(response.status_code, response.headers):
                raise self.interrupted()  # the entire file: a proxy does not support ranges
            self._etag = response.headers.get("etag") or self._etag
            for block in response.iter_bytes():
                with name_os_errors(self._name):
                    self._sink.write(block)
                self.received_bytes += len(block)
        if self.received_bytes > self._size_bytes:
            raise self.interrupted()

    def _is_rest(self, status: int, headers: Mapping[str, str]) -> bool:
        """Whether the response has exactly the missing range (RFC 9110, 14.4)."""
        if status != HTTPStatus.PARTIAL_CONTENT:
            return False
        content_range = headers.get("content-range", "").partition(" ")[2]
        last = (self._size_bytes or 0) - 1
        return content_range == f"{self.received_bytes}-{last}/{self._size_bytes}"

    def interrupted(self) -> DownloadInterruptedError:
        """Return the error with the number of bytes that have arrived."""
        return DownloadInterruptedError(
            f"The download was interrupted: received {self.received_bytes:,} of "
            f"{self._size_bytes or 0:,} bytes."
        )


def _status(target: Path) -> os.stat_result | None:
    """Return the status of the target, behind links, or None. Raises OSError, also for a folder."""
    try:
        status = target.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    return status


@contextmanager
def _temporary_file(real: Path, status: os.stat_result | None) -> Iterator[tuple[IO[bytes], Path]]:
    """Create a file in the folder of `real`, removed at the end unless it was renamed.

    It has the permissions in `status`, those of the file that it replaces.
    """
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
