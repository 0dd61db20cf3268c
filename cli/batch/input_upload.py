"""Uploads the input file of one request to the API and deletes it if that request is rejected."""

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

import typer

from cli.api_client import Client
from cli.exits import CommandError
from cli.output import name_os_errors
from core.ids import FILE, parse_public_id

_CHUNK_BYTES: Final = 256 * 1024
_IN_FLIGHT: Final = "idempotency_key_in_flight"

FILE_HELP: Final = "JSONL, one request per line; - reads stdin; or the id of an uploaded file."


class FileChangedError(CommandError):
    """The file changed during the upload."""


@contextmanager
def uploaded_input(client: Client, source: str) -> Iterator[str]:
    """Upload a file, `-` for stdin, and yield its id; the id of an uploaded file is yielded as is.

    When the block fails with a rejection, the file is deleted. When the outcome is unknown, the
    file's id is printed on stderr. Raises OSError, FileChangedError, and the errors of the client.
    """
    if parse_public_id(FILE, source) is not None and not Path(source).exists():
        yield source
        return
    file_id = _upload(client, source)
    try:
        yield file_id
    except BaseException as failure:  # also an interrupt: the API may have accepted the request
        if not (_is_rejection(failure) and _delete(client, file_id)):
            typer.echo(f"the uploaded file is {file_id}: give this id as FILE to use it", err=True)
        raise


@contextmanager
def rereadable_input(path: str) -> Iterator[IO[bytes]]:
    """Yield the input as a file that has a length and can be read twice. Raises OSError.

    `-` is stdin. Stdin and other inputs that are not regular files are copied to disk.
    """
    if path == "-":
        with _spooled(sys.stdin.buffer, "stdin") as copy:
            yield copy
        return
    with Path(path).open("rb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            yield file
            return
        with _spooled(file, path) as copy:
            yield copy


def _upload(client: Client, path: str) -> str:
    import openai

    # A file name may contain any bytes; the request needs UTF-8.
    name = "stdin.jsonl" if path == "-" else os.fsencode(Path(path).name).decode(errors="replace")
    with rereadable_input(path) as content:
        size_bytes = os.fstat(content.fileno()).st_size
        try:
            return client.files.create(file=(name, content), purpose="batch").id
        except openai.OpenAIError:
            raise
        except Exception as failure:  # the client fails in many ways when a file shrinks
            if os.fstat(content.fileno()).st_size != size_bytes:
                raise FileChangedError(f"{path}: it changed during the upload") from failure
            raise


@contextmanager
def _spooled(source: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    folder = tempfile.gettempdir()
    copy = tempfile.TemporaryFile(prefix="millrace-", dir=folder)  # noqa: SIM115  closed below
    try:
        while True:
            with name_os_errors(name):
                block = source.read(_CHUNK_BYTES)
            if not block:
                break
            with name_os_errors(folder):
                copy.write(block)
        with name_os_errors(folder):
            copy.seek(0)
        yield copy
    finally:
        with suppress(OSError):  # the buffer cannot be written now if it could not before
            copy.close()


def _is_rejection(failure: BaseException) -> bool:
    """Whether the API has certainly not accepted the request."""
    import openai

    if isinstance(failure, openai.APIStatusError):
        is_unknown = isinstance(failure, openai.InternalServerError) or failure.code == _IN_FLIGHT
        return not is_unknown
    return isinstance(failure, UnicodeEncodeError)  # never sent


def _delete(client: Client, file_id: str) -> bool:
    """Delete an uploaded file; False when that failed."""
    import openai

    try:
        client.files.delete(file_id)
    except openai.OpenAIError:
        return False
    return True
