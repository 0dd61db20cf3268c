"""The content of a file of the API, picked up again where it broke off."""

import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import IO, TYPE_CHECKING, Final

import typer

from cli.batch.job_progress import UNAVAILABLE_S_MAX
from cli.client import transient_errors
from cli.exits import CommandError
from cli.os_errors import name_os_errors

if TYPE_CHECKING:
    import openai

_PAUSE_S: Final = 1.0


class DownloadInterruptedError(CommandError):
    """The download broke off."""


def download_file(
    client: "openai.OpenAI",
    file_id: str | None,
    sink: IO[bytes],
    name: str,
    *,
    quiet: bool = False,
) -> None:
    """Stream a file of the API into `sink`, which the user calls `name`; nothing without an id.

    A server that is away, fails or is busy is asked again, for what is left, until no byte has
    come for `UNAVAILABLE_S_MAX`; stderr says so unless `quiet`. Raises OSError, DownloadInterruptedError, and what
    the client raises.
    """
    import openai

    if file_id is None:
        return
    copy = _Copy(client.with_options(max_retries=0), file_id, sink, name)
    copied_bytes, moved_s, was_told = 0, time.monotonic(), False
    while True:
        last: Exception | None = None
        try:
            copy.go_on()
        except transient_errors() as failure:
            last = failure
        if copy.is_whole:
            return
        if copy.copied_bytes > copied_bytes:
            copied_bytes, moved_s = copy.copied_bytes, time.monotonic()
        if time.monotonic() - moved_s > UNAVAILABLE_S_MAX:
            if isinstance(last, openai.APIError):
                raise last
            raise copy.cut()
        if not (quiet or was_told):
            typer.echo(f"{copy.cut()} Asking for the rest for {UNAVAILABLE_S_MAX:.0f} s.", err=True)
            was_told = True
        time.sleep(_PAUSE_S)


class _Copy:
    """One file on its way, and how much of it is here."""

    def __init__(self, client: "openai.OpenAI", file_id: str, sink: IO[bytes], name: str) -> None:
        self._client, self._file_id, self._sink, self._name = client, file_id, sink, name
        self._size_bytes: int | None = None  # until the server has said it
        self._tag = ""
        self.copied_bytes = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to ask for."""
        return self.copied_bytes == self._size_bytes

    def go_on(self) -> None:
        """Copy what is left, as far as it comes. Raises as `download_file` does."""
        if self._size_bytes is None:
            self._size_bytes = self._client.files.retrieve(self._file_id).bytes
        if self.is_whole:
            return
        headers = {"accept-encoding": "identity"}  # ranges count the bytes that are sent
        if self.copied_bytes:
            headers["range"] = f"bytes={self.copied_bytes}-"
            if self._tag:
                headers["if-range"] = self._tag
        answering = self._client.files.with_streaming_response.content(
            self._file_id, extra_headers=headers
        )
        with answering as answer:
            if self.copied_bytes and not self._is_rest(answer.status_code, answer.headers):
                raise self.cut()  # from the beginning again: something between serves no ranges
            self._tag = answer.headers.get("etag") or self._tag
            for block in answer.iter_bytes():
                with name_os_errors(self._name):
                    self._sink.write(block)
                self.copied_bytes += len(block)
        if self.copied_bytes > self._size_bytes:
            raise self.cut()

    def _is_rest(self, status: int, headers: Mapping[str, str]) -> bool:
        """Whether an answer begins where the copy ends (RFC 9110, 14.4)."""
        if status != HTTPStatus.PARTIAL_CONTENT:
            return False
        came = headers.get("content-range", "").partition(" ")[2]
        return came == f"{self.copied_bytes}-{(self._size_bytes or 0) - 1}/{self._size_bytes}"

    def cut(self) -> DownloadInterruptedError:
        """Return the error that says how far it came."""
        came = f"{self.copied_bytes:,} of {self._size_bytes or 0:,} bytes came"
        return DownloadInterruptedError(f"The download broke off: {came}.")
