"""Redrive: the lines of dead letters, optionally edited, become the input file of a new job.

The old job does not change; the metadata of the new one refers to it as `redrive_of`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final
from uuid import UUID

import msgspec
import sqlalchemy as sa

from core.ids import JOB, public_id
from core.limits import METADATA_PAIRS_MAX
from core.states import JobState
from jobs.errors import (
    DeadLetterNotFoundError,
    DeadLettersRedrivenError,
    InputFileRemovedError,
    InvalidFieldError,
)
from jobs.input.input_files import InputFile, InputFiles, input_files, read_item_lines
from jobs.input.line_reader import read_lines_at
from jobs.store.batches import NewJob, find_job
from jobs.store.job_options import JobOptions
from jobs.tables.jobs import jobs
from jobs.tables.retries import dead_items
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectStore

REDRIVE_MAX: Final = 50_000
"""Items of one redrive, as in one OpenAI batch; a batch with more needs several redrives."""

REDRIVE_OF: Final = "redrive_of"
"""The metadata key of the new job that refers to the old one."""

_FAR_LINES_MAX: Final = 1000
"""With more lines the file is read from its start: each distant line would cost one read."""

_DEPTH_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class DeadLine:
    """A dead letter: its item, and the offset of its line if known."""

    item_index: int
    line_offset: int | None


@dataclass(frozen=True, slots=True)
class Redrive:
    """The lines to redrive of one job, in order."""

    job: sa.Row[Any] = field(repr=False)
    files: InputFiles
    lines: list[DeadLine]
    is_rest: bool  # the lines never redriven; explicitly named lines may be redriven repeatedly


def select_dead_letters(
    connection: sa.Connection, tenant_id: UUID, job_id: UUID, item_indexes: Sequence[int] | None
) -> Redrive:
    """Return the dead letters of these items of a job, or all that were never redriven.

    A redrive whose file was rejected ran no item, so it does not count. Raises JobNotFoundError,
    DeadLetterNotFoundError for an unknown item, and DeadLettersRedrivenError if none is left.
    """
    job = find_job(connection, tenant_id, job_id)
    query = (
        sa.select(dead_items.c.item_index, dead_items.c.line_offset)
        .where(dead_items.c.job_id == job_id, dead_items.c.tenant_id == tenant_id)
        .order_by(dead_items.c.item_index)
        .limit(REDRIVE_MAX)
    )
    if item_indexes is None:
        query = query.where(_is_not_redriven())
    else:
        query = query.where(dead_items.c.item_index.in_(item_indexes))
    lines = [DeadLine(*row) for row in connection.execute(query)]
    if item_indexes is not None and len(lines) < len(set(item_indexes)):
        raise DeadLetterNotFoundError
    if not lines:
        raise DeadLettersRedrivenError if _has_any(connection, job_id) else DeadLetterNotFoundError
    return Redrive(job, input_files(connection, job), lines, is_rest=item_indexes is None)


def _is_not_redriven() -> sa.ColumnElement[bool]:
    """Return the condition that no redrive of a dead letter ran; a rejected file ran no item."""
    redrive = jobs.alias("redrive")
    was_rejected = sa.exists().where(
        redrive.c.id == dead_items.c.redriven_job_id, redrive.c.state == JobState.FAILED.value
    )
    return dead_items.c.redriven_job_id.is_(None) | was_rejected


def _has_any(connection: sa.Connection, job_id: UUID) -> bool:
    query = sa.select(sa.exists().where(dead_items.c.job_id == job_id))
    return bool(connection.scalar(query))


def mark_redriven(connection: sa.Connection, redrive: Redrive, new_job_id: UUID) -> None:
    """Record the new job on its dead letters, in the transaction that inserts that job.

    Raises DeadLettersRedrivenError if another redrive was faster; roll the transaction back then.
    """
    statement = sa.update(dead_items).where(
        dead_items.c.job_id == redrive.job.id,
        dead_items.c.item_index.in_([line.item_index for line in redrive.lines]),
    )
    if redrive.is_rest:
        # Evaluated on the newest rows: a faster redrive owns them and their results.
        statement = statement.where(_is_not_redriven())
    marked = connection.execute(statement.values(redriven_job_id=new_job_id))
    if redrive.is_rest and marked.rowcount < len(redrive.lines):
        message = "Some dead letters were redriven in the meantime. Send the request again."
        raise DeadLettersRedrivenError(message)


def new_redrive_job(
    redrive: Redrive,
    file_id: UUID,
    *,
    completion_window: str | None,
    metadata: dict[str, str] | None,
) -> NewJob:
    """Return the new job, with the values of the old one as defaults.

    Its bulk hours hold on; a `not_before` of the old one is not kept, because it is past.
    """
    old = redrive.job
    pairs = dict(old.metadata or {}) if metadata is None else metadata
    kept = [pair for pair in pairs.items() if pair[0] != REDRIVE_OF]
    if metadata is None:
        kept = kept[: METADATA_PAIRS_MAX - 1]
    return NewJob(
        input_file_id=file_id,
        endpoint=old.endpoint,
        completion_window=completion_window or old.completion_window,
        metadata=dict(kept) | {REDRIVE_OF: public_id(JOB, old.id)},
        output_expires_after_s=old.output_expires_after_s,
        options=JobOptions(deduplicate=old.deduplicate, bulk_hours=old.bulk_hours),
    )


def read_edited_lines(
    objects: ObjectStore, redrive: Redrive, edits: Mapping[str, Any]
) -> Iterator[bytes]:
    """Yield the lines to redrive, without newlines, their bodies patched with `edits`.

    Without edits the lines are unchanged, byte for byte. Raises InputFileRemovedError,
    InvalidFieldError, and the errors of the object store.
    """
    try:
        for file, letters in redrive.files.group_by_file(redrive.lines, lambda x: x.item_index):
            for letter, line in zip_longest(letters, _read_lines(objects, file, letters)):
                if line is None:  # the file ends before the line
                    raise InputFileRemovedError
                yield edit_line(line, edits, letter.item_index) if edits else line
    except ObjectNotFoundError:
        raise InputFileRemovedError from None


def edit_line(line: bytes, edits: Mapping[str, Any], item_index: int) -> bytes:
    """Return the line of an item with its body patched.

    Raises InvalidFieldError if the line cannot be encoded again, for example because of a number
    with thousands of digits. Such a line can be redriven without edits.
    """
    try:
        request = msgspec.json.decode(line)
        request["body"] = apply_merge_patch(request["body"], edits)
        return msgspec.json.encode(request)
    except (KeyError, RecursionError, TypeError, ValueError):
        message = f"Item {item_index} cannot be edited; without edits it can be redriven."
        raise InvalidFieldError(message, param="edits") from None


def apply_merge_patch(target: Any, patch: Any) -> Any:
    """Return `target` after a JSON merge patch; null removes a key. Source: RFC 7396."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = apply_merge_patch(result.get(name), value)
    return result


def check_edits(edits: Any, depth: int = 0) -> None:
    """Raise InvalidFieldError if a patch is nested too deep."""
    if depth > _DEPTH_MAX:
        raise InvalidFieldError("The edits are nested too deeply.", param="edits")
    inner = edits.values() if isinstance(edits, Mapping) else edits
    if isinstance(inner, Iterable) and not isinstance(inner, str):
        for value in inner:
            check_edits(value, depth + 1)


def _read_lines(
    objects: ObjectStore, file: InputFile, letters: Sequence[DeadLine]
) -> Iterator[bytes | None]:
    """Yield the line of each dead letter in a file, or None if there is no such line."""
    offsets = [letter.line_offset for letter in letters if letter.line_offset is not None]
    if len(offsets) == len(letters) <= _FAR_LINES_MAX:
        return read_lines_at(objects, file.key, offsets)
    indexes = [letter.item_index for letter in letters]
    return (line for _, _, line in read_item_lines(objects, file, indexes))
