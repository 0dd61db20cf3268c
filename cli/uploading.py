"""A file that is uploaded for one use of it, and goes again when that use is refused."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    import openai

_CHUNK_BYTES: Final = 256 * 1024


@contextmanager
def uploaded(client: "openai.OpenAI", path: str) -> Iterator[str]:
    """Upload a file, `-` for stdin, and yield its id; when the block is refused, delete it again.

    When nobody knows what became of it, say its id on stderr instead. Raises OSError, and what
    the client raises.
    """
    import openai

    with input_to_upload(path) as content:
        name = "stdin.jsonl" if path == "-" else Path(path).name
        file_id = client.files.create(file=(name, content), purpose="batch").id
    try:
        yield file_id
    except (openai.APIConnectionError, openai.InternalServerError):
        _say_kept(file_id)  # the server may have done it nevertheless
        raise
    except openai.APIStatusError:
        try:
            client.files.delete(file_id)
        except openai.OpenAIError:
            _say_kept(file_id)
        raise


@contextmanager
def input_to_upload(path: str) -> Iterator[IO[bytes]]:
    """Yield a file that can be read twice; `-` is stdin, kept on disk for that. Raises OSError."""
    if path != "-":
        with Path(path).open("rb") as file:
            yield file
        return
    with tempfile.TemporaryFile(prefix="millrace-") as kept:
        shutil.copyfileobj(sys.stdin.buffer, kept, _CHUNK_BYTES)
        kept.seek(0)
        yield kept


def _say_kept(file_id: str) -> None:
    typer.echo(f"the uploaded file is {file_id}", err=True)
