"""Downloads a file of the API and resumes after interruptions."""

import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import IO, TYPE_CHECKING, Final

import typer

from cli.batch.job_progress import UNAVAILABLE_S_MAX
from cli.client import transient_errors
from cli.exits import CommandError
from cli.os_errors import naming_os_errors

if TYPE_CHECKING:
    import openai

_PAUSE_S: Final = 1.0


class DownloadInterruptedError(CommandError):
    """The download was interrupted."""


def copy_file(
    client: "openai.OpenAI",
    file_id: str | None,
    sink: IO[bytes],
    name: str,
    *,
    quiet: bool = False,
) -> None:
    """Stream a file of the API into `sink`; do nothing without an id. `name` is for messages.

    Retries the rest while the server is unavailable, fails or is busy, until no byte has come for
    `UNAVAILABLE_S_MAX`; reports this on stderr unless `quiet`. Raises OSError,
    DownloadInterruptedError, and the client's errors.
    """
    import openai

    if file_id is None:
        return
    download = _Download(client.with_options(max_retries=0), file_id, sink, name)
    copied_bytes, progress_s, was_reported = 0, time.monotonic(), False
    while True:
        last: Exception | None = None
        try:
            download.resume()
        except transient_errors() as failure:
            last = failure
        if download.is_complete:
            return
        if download.copied_bytes > copied_bytes:
            copied_bytes, progress_s = download.copied_bytes, time.monotonic()
        if time.monotonic() - progress_s > UNAVAILABLE_S_MAX:
            if isinstance(last, openai.APIError):
                raise last
            raise download.interrupted()
        if not (quiet or was_reported):
            typer.echo(
                f"{download.interrupted()} Asking for the rest for {UNAVAILABLE_S_MAX:.0f} s.",
                err=True,
            )
            was_reported = True
        time.sleep(_PAUSE_S)


class _Download:
    """One download and how many bytes of it are written."""

    def __init__(self, client: "openai.OpenAI", file_id: str, sink: IO[bytes], name: str) -> None:
        self._client, self._file_id, self._sink, self._name = client, file_id, sink, name
        self._size_bytes: int | None = None  # unknown until the first request
        self._tag = ""
        self.copied_bytes = 0

    @property
    def is_complete(self) -> bool:
        """Whether all bytes are written."""
        return self.copied_bytes == self._size_bytes

    def resume(self) -> None:
        """Copy the rest, as far as the server sends it. Raises as `copy_file` does."""
        if self._size_bytes is None:
            self._size_bytes = self._client.files.retrieve(self._file_id).bytes
        if self.is_complete:
            return
        headers = {"accept-encoding": "identity"}  # ranges refer to encoded bytes
        if self.copied_bytes:
            headers["range"] = f"bytes={self.copied_bytes}-"
            if self._tag:
                headers["if-range"] = self._tag
        answering = self._client.files.with_streaming_response.content(
            self._file_id, extra_headers=headers
        )
        with answering as answer:
            if self.copied_bytes and not self._is_rest(answer.status_code, answer.headers):
                raise self.interrupted()  # sent from the start: a proxy ignores ranges
            self._tag = answer.headers.get("etag") or self._tag
            for block in answer.iter_bytes():
                with naming_os_errors(self._name):
                    self._sink.write(block)
                self.copied_bytes += len(block)
        if self.copied_bytes > self._size_bytes:
            raise self.interrupted()

    def _is_rest(self, status: int, headers: Mapping[str, str]) -> bool:
        """Whether an answer starts where the copy ends (RFC 9110, 14.4)."""
        if status != HTTPStatus.PARTIAL_CONTENT:
            return False
        content_range = headers.get("content-range", "").partition(" ")[2]
        return (
            content_range == f"{self.copied_bytes}-{(self._size_bytes or 0) - 1}/{self._size_bytes}"
        )

    def interrupted(self) -> DownloadInterruptedError:
        """Return the error with the number of copied bytes."""
        progress = f"{self.copied_bytes:,} of {self._size_bytes or 0:,} bytes came"
        return DownloadInterruptedError(f"The download broke off: {progress}.")
