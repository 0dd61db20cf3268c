"""Downloads a file of the API and resumes interrupted downloads with range requests."""

import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import IO, TYPE_CHECKING, Final

import typer

from cli.api_client import transient_errors
from cli.batch.job_progress import UNAVAILABLE_S_MAX
from cli.exits import CommandError
from cli.os_errors import name_os_errors

if TYPE_CHECKING:
    import openai

_PAUSE_S: Final = 1.0


class DownloadInterruptedError(CommandError):
    """The download was interrupted."""


def download_file(
    client: "openai.OpenAI",
    file_id: str | None,
    sink: IO[bytes],
    name: str,
    *,
    quiet: bool = False,
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

    def __init__(self, client: "openai.OpenAI", file_id: str, sink: IO[bytes], name: str) -> None:
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
