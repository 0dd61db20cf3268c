"""The two files of a settled job: its rows rendered into two objects of one epoch."""

from collections.abc import Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from core.object_names import RESULTS
from results.finaliser.output_lines import (
    ANSWER_GONE,
    CLOSING,
    ItemRow,
    LineTemplate,
    belongs_to_output,
    one_line,
)
from results.writer.custom_ids import JobCustomIds
from storage.objects.errors import ObjectMissingError
from storage.objects.object_store import ObjectStore, StoredObject, Upload

_BUFFER_BYTES: Final = 512 * 1024


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """The complete objects; None for a file that would hold no line."""

    output: StoredObject | None
    error: StoredObject | None


def result_prefix(job_id: UUID) -> str:
    """Return what the keys of all epochs of a job start with."""
    return f"{RESULTS}{job_id.hex}/"


def write_result_files(
    store: ObjectStore,
    rows: Iterable[ItemRow],
    *,
    job_id: UUID,
    epoch: int,
    custom_ids: JobCustomIds,
) -> ResultFiles:
    """Render every row into the file it belongs to; whatever is raised leaves no object.

    Raises ObjectExistsError when another attempt of this epoch was here.
    """
    prefix = f"{result_prefix(job_id)}{epoch}/"
    with (
        closing(custom_ids),
        store.begin(f"{prefix}output.jsonl") as output_upload,
        store.begin(f"{prefix}error.jsonl") as error_upload,
        ThreadPoolExecutor(1, "upload") as writer,  # ends before the uploads that it writes to
    ):
        output, error = _Buffered(output_upload, writer), _Buffered(error_upload, writer)
        template = LineTemplate(job_id)
        for row in rows:
            custom_id = row.custom_id
            if custom_id is None:
                custom_id = custom_ids.at(row.item_index)
            file = output if belongs_to_output(row) else error
            if row.body_key is None or not row.status_code:
                file.write(template.line(row, custom_id))
            else:
                _write_stored(file, template, row, custom_id, store)
        stored = output.complete()
        try:
            return ResultFiles(stored, error.complete())
        except BaseException:
            if stored is not None:
                store.delete(stored.key)
            raise


def _write_stored(
    file: "_Buffered", template: LineTemplate, row: ItemRow, custom_id: str, store: ObjectStore
) -> None:
    """Write the line of an answer that is an object of its own.

    One that is gone, which a restored database may name, is an error of its line, not of its job.
    """
    assert row.body_key is not None
    try:
        blocks = store.read(row.body_key)
    except ObjectMissingError:
        gone = row._replace(status_code=0, error_code=ANSWER_GONE, error_message=None)
        file.write(template.line(gone, custom_id))
        return
    file.write((template.opening(row, custom_id),))
    with blocks:
        for block in blocks:
            file.write((one_line(block),))
    file.write((CLOSING,))


class _Buffered:
    """Gathers parts of lines, because an upload's `write` costs more than a line.

    One write at a time goes on beside the rendering of what comes next: a third of the time that
    files take is hashing and the store, which need no interpreter.
    """

    def __init__(self, upload: Upload, writer: Executor) -> None:
        self._upload = upload
        self._writer = writer
        self._written: Future[None] | None = None
        self._parts: list[bytes] = []
        self._held = 0

    def write(self, parts: tuple[bytes, ...]) -> None:
        self._parts += parts
        self._held += sum(map(len, parts))
        if self._held >= _BUFFER_BYTES:
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
            self._held = 0
            if self._written is not None:
                self._written.result()  # raises what it raised, before more is held
            self._written = self._writer.submit(self._upload.write, data)
