"""Writes the output and error file of a settled job as two objects of one lease epoch."""

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from core.object_names import RESULTS
from results.finaliser.input_custom_ids import CompleteCustomIds
from results.finaliser.output_lines import (
    ANSWER_GONE,
    ItemRow,
    LineTemplate,
    after_body,
    belongs_to_output,
    one_line,
)
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectStore, StoredObject, Upload

_BUFFER_BYTES: Final = 512 * 1024
_NO_TAGS: Final[Mapping[int, bytes]] = {}


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """The stored files; None for a file without lines."""

    output: StoredObject | None
    error: StoredObject | None


def result_prefix(job_id: UUID) -> str:
    """Return the common key prefix of a job's files in all epochs."""
    return f"{RESULTS}{job_id.hex}/"


def write_result_files(
    store: ObjectStore,
    rows: Iterable[ItemRow],
    *,
    job_id: UUID,
    epoch: int,
    custom_ids: CompleteCustomIds,
    tags: Mapping[int, bytes] = _NO_TAGS,
) -> ResultFiles:
    """Write every row to the file that it belongs to; an error leaves no object behind.

    `tags` are the last fields of lines by the number of their provenance.
    Raises ObjectExistsError when another attempt with this epoch has written the files.
    """
    prefix = f"{result_prefix(job_id)}{epoch}/"
    with (
        closing(custom_ids),
        store.begin_upload(f"{prefix}output.jsonl") as output_upload,
        store.begin_upload(f"{prefix}error.jsonl") as error_upload,
        ThreadPoolExecutor(1, "upload") as writer,  # ends before the uploads it writes to
    ):
        output, error = _Buffered(output_upload, writer), _Buffered(error_upload, writer)
        template = LineTemplate(job_id)
        for row in rows:
            custom_id = row.custom_id
            if custom_id is None:
                custom_id = custom_ids.at(row.item_index)
            file = output if belongs_to_output(row) else error
            tag = b"" if row.provenance is None else tags.get(row.provenance, b"")
            if row.body_key is None or not row.status_code:
                file.write(template.line(row, custom_id, tag))
            else:
                _write_stored(file, template, row, custom_id, store, tag)
        stored = output.complete()
        try:
            return ResultFiles(stored, error.complete())
        except BaseException:  # whatever failed: no row names the first object
            if stored is not None:
                store.delete(stored.key)
            raise


def _write_stored(
    file: "_Buffered",
    template: LineTemplate,
    row: ItemRow,
    custom_id: str,
    store: ObjectStore,
    tag: bytes,
) -> None:
    """Write the line of an answer that is an object of its own.

    A missing object, as a restored database may name one, is an error of its line, not of the job.
    """
    assert row.body_key is not None
    try:
        blocks = store.read(row.body_key)
    except ObjectNotFoundError:
        failed = row._replace(status_code=0, error_code=ANSWER_GONE, error_message=None)
        file.write(template.line(failed, custom_id, tag))
        return
    file.write((template.before_body(row, custom_id),))
    with blocks:
        for block in blocks:
            file.write((one_line(block),))
    file.write((after_body(tag),))


class _Buffered:
    """Buffers parts of lines, because an upload's `write` costs more than rendering a line.

    One write runs in the background while the next lines are rendered: hashing and the store take
    a third of the time and release the interpreter lock.
    """

    def __init__(self, upload: Upload, writer: Executor) -> None:
        self._upload = upload
        self._writer = writer
        self._written: Future[None] | None = None
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, parts: tuple[bytes, ...]) -> None:
        self._parts += parts
        self._size += sum(map(len, parts))
        if self._size >= _BUFFER_BYTES:
            self._flush()

    def complete(self) -> StoredObject | None:
        self._flush()
        if self._written is None:
            return None
        self._written.result()
        return self._upload.complete(if_absent=True)

    def _flush(self) -> None:
        if self._parts:
            data = b"".join(self._parts)
            self._parts.clear()
            self._size = 0
            if self._written is not None:
                self._written.result()  # raises the error of the previous write
            self._written = self._writer.submit(self._upload.write, data)
