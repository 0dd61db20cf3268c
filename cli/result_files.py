"""Bring files of the API here: streamed, checked for length, and whole or not at all."""

import os
from pathlib import Path
from typing import IO, TYPE_CHECKING

from cli.exits import CommandError

if TYPE_CHECKING:
    import openai
    from openai.types import Batch

_CHUNK_BYTES = 256 * 1024


class DownloadCutError(CommandError):
    """The download ended early; nothing was kept."""


def save_files(
    client: "openai.OpenAI", batch: "Batch", output: Path | None, errors: Path | None
) -> None:
    """Write the files of a job that has ended where they are wanted; see `save_file`."""
    if output is not None:
        save_file(client, batch.output_file_id, output)
    if errors is not None:
        save_file(client, batch.error_file_id, errors)


def save_file(client: "openai.OpenAI", file_id: str | None, target: Path) -> None:
    """Write a file of the API to `target`; without an id, write an empty one.

    The content goes to a new file beside it that takes its place when complete. What is no regular
    file, like /dev/null, is written to as it is. Raises OSError, DownloadCutError, and what the
    client raises.
    """
    if target.exists() and not target.is_file():
        with target.open("wb") as sink:
            copy_file(client, file_id, sink)
        return
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("xb") as sink:
            copy_file(client, file_id, sink)
            sink.flush()
            os.fsync(sink.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def copy_file(client: "openai.OpenAI", file_id: str | None, sink: IO[bytes]) -> None:
    """Stream a file of the API into `sink`; see `save_file` for what is raised."""
    if file_id is None:
        return
    expected_bytes = client.files.retrieve(file_id).bytes
    copied_bytes = 0
    with client.files.with_streaming_response.content(file_id) as response:
        for chunk in response.iter_bytes(_CHUNK_BYTES):
            sink.write(chunk)
            copied_bytes += len(chunk)
    if copied_bytes != expected_bytes:
        raise DownloadCutError
