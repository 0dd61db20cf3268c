"""Uploads an input file for one request, and deletes it when the request is refused."""

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import typer

from cli.exits import CommandError
from cli.os_errors import naming_os_errors
from core.ids import FILE, parse_public_id

if TYPE_CHECKING:
    import openai

_CHUNK_BYTES: Final = 256 * 1024
_IN_FLIGHT: Final = "idempotency_key_in_flight"

FILE_HELP: Final = "JSONL, one request a line; - reads stdin; or the id of an uploaded file."


class FileChangedError(CommandError):
    """The file changed while it was read."""


@contextmanager
def uploaded_file(client: "openai.OpenAI", given: str) -> Iterator[str]:
    """Upload a file, `-` for stdin, and yield its id; delete it if the block's request is refused.

    If the result of the request is unknown, print the file's id to stderr instead. An id of an
    uploaded file is yielded unchanged. Raises OSError, FileChangedError, and the client's errors.
    """
    if parse_public_id(FILE, given) is not None and not Path(given).exists():
        yield given
        return
    file_id = _upload(client, given)
    try:
        yield file_id
    except BaseException as failure:  # also an interrupt: the server may have accepted the request
        if not (_is_refusal(failure) and _is_deleted(client, file_id)):
            typer.echo(f"the uploaded file is {file_id}: give this id as FILE to use it", err=True)
        raise


@contextmanager
def seekable_input(path: str) -> Iterator[IO[bytes]]:
    """Yield a file that can be read twice and has a length. Raises OSError.

    Stdin (`-`) and other inputs that are not regular files are copied to a temporary file.
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


def _upload(client: "openai.OpenAI", path: str) -> str:
    import openai

    # A file name may hold any bytes, but the request is UTF-8.
    name = "stdin.jsonl" if path == "-" else os.fsencode(Path(path).name).decode(errors="replace")
    with seekable_input(path) as content:
        size_bytes = os.fstat(content.fileno()).st_size
        try:
            return client.files.create(file=(name, content), purpose="batch").id
        except openai.OpenAIError:
            raise
        except Exception as failure:
            if os.fstat(content.fileno()).st_size != size_bytes:
                raise FileChangedError(f"{path}: it changed while it was read") from failure
            raise


@contextmanager
def _spooled(source: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    folder = tempfile.gettempdir()
    copy = tempfile.TemporaryFile(prefix="millrace-", dir=folder)  # noqa: SIM115  closed below
    try:
        while True:
            with naming_os_errors(name):
                block = source.read(_CHUNK_BYTES)
            if not block:
                break
            with naming_os_errors(folder):
                copy.write(block)
        with naming_os_errors(folder):
            copy.seek(0)
        yield copy
    finally:
        with suppress(OSError):  # a failed flush fails again
            copy.close()


def _is_refusal(failure: BaseException) -> bool:
    """Whether the server has certainly not accepted the request."""
    import openai

    if isinstance(failure, openai.APIStatusError):
        is_unknown = isinstance(failure, openai.InternalServerError) or failure.code == _IN_FLIGHT
        return not is_unknown
    return isinstance(failure, UnicodeEncodeError)  # never sent


def _is_deleted(client: "openai.OpenAI", file_id: str) -> bool:
    import openai

    try:
        client.files.delete(file_id)
    except openai.OpenAIError:
        return False
    return True
