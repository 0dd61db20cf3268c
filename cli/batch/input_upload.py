"""A file that is uploaded for one use of it, and goes again when that use is refused."""

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
from cli.os_errors import name_os_errors
from core.ids import FILE, parse_public_id

if TYPE_CHECKING:
    import openai

_CHUNK_BYTES: Final = 256 * 1024
_IN_FLIGHT: Final = "idempotency_key_in_flight"

FILE_HELP: Final = "JSONL, one request a line; - reads stdin; or the id of an uploaded file."


class FileChangedError(CommandError):
    """The file changed while it was read."""


@contextmanager
def uploaded_input(client: "openai.OpenAI", given: str) -> Iterator[str]:
    """Upload a file, `-` for stdin, and yield its id; when the block is refused, delete it again.

    When nobody knows what became of it, say its id on stderr instead. The id of a file is yielded
    as it is. Raises OSError, FileChangedError, and what the client raises.
    """
    if parse_public_id(FILE, given) is not None and not Path(given).exists():
        yield given
        return
    file_id = _upload(client, given)
    try:
        yield file_id
    except BaseException as failure:  # an interrupt, too: the server may have done it already
        if not (_is_refusal(failure) and _is_deleted(client, file_id)):
            typer.echo(f"the uploaded file is {file_id}: give this id as FILE to use it", err=True)
        raise


@contextmanager
def rereadable_input(path: str) -> Iterator[IO[bytes]]:
    """Yield a file that can be read twice and has a length. Raises OSError.

    `-` is stdin. It, and whatever else is no regular file, is kept on disk for that.
    """
    if path == "-":
        with _spooled(sys.stdin.buffer, "stdin") as kept:
            yield kept
        return
    with Path(path).open("rb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            yield file
            return
        with _spooled(file, path) as kept:
            yield kept


def _upload(client: "openai.OpenAI", path: str) -> str:
    import openai

    # A name is any bytes, and what is sent is UTF-8.
    name = "stdin.jsonl" if path == "-" else os.fsencode(Path(path).name).decode(errors="replace")
    with rereadable_input(path) as content:
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
    kept = tempfile.TemporaryFile(prefix="millrace-", dir=folder)  # noqa: SIM115  closed below
    try:
        while True:
            with name_os_errors(name):
                block = source.read(_CHUNK_BYTES)
            if not block:
                break
            with name_os_errors(folder):
                kept.write(block)
        with name_os_errors(folder):
            kept.seek(0)
        yield kept
    finally:
        with suppress(OSError):  # what could not be written cannot now
            kept.close()


def _is_refusal(failure: BaseException) -> bool:
    """Whether the server has surely not done what was asked."""
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
