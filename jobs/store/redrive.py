"""Take dead letters up again: their lines, edited, become the input file of a new job.

The old job stays as it is; the new one says `redrive_of` in its metadata.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
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
from jobs.input.line_lookup import read_lines_at
from jobs.input.line_reader import input_lines
from jobs.settings import LINE_BYTES_CEILING
from jobs.store.batches import NewJob, find_job
from jobs.store.job_options import JobOptions
from jobs.tables.appended_files import job_inputs
from jobs.tables.jobs import jobs
from jobs.tables.retries import dead_items
from storage.objects.errors import ObjectMissingError
from storage.objects.object_store import ObjectStore

REDRIVE_MAX: Final = 50_000
"""Items of one redrive, as in one batch of OpenAI's; a batch with more is redriven in turns."""

REDRIVE_OF: Final = "redrive_of"
"""The key in a new job's metadata that names the old one."""

_FAR_LINES_MAX: Final = 1000
"""More lines than this are read in one go from the start: each far one would cost a read."""

_DEPTH_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class DeadLine:
    """A dead letter by its item, and where its line begins when that is known."""

    item_index: int
    line_offset: int | None


@dataclass(frozen=True, slots=True)
class Source:
    """An input file of a job: the offsets of its items' lines count from its start."""

    key: str
    first_index: int  # of its items in the job


@dataclass(frozen=True, slots=True)
class Redrive:
    """What is taken up again: lines of one job's input files, in order."""

    job: sa.Row[Any] = field(repr=False)
    sources: list[Source]  # in the order of their items
    lines: list[DeadLine]
    is_rest: bool  # what nobody has redriven yet; lines that were named run as often as asked for


def select_dead_letters(
    connection: sa.Connection,
    tenant_id: UUID,
    job_id: UUID,
    item_indexes: Sequence[int] | None,
) -> Redrive:
    """Return the dead letters of these items of a job, or those that nobody has redriven yet.

    A redrive whose file was refused ran nothing, so it does not count. Raises JobMissingError,
    DeadLetterNotFoundError for any that is unknown, DeadLettersRedrivenError when none is left.
    """
    job = find_job(connection, tenant_id, job_id)
    query = (
        sa.select(dead_items.c.item_index, dead_items.c.line_offset)
        .where(dead_items.c.job_id == job_id, dead_items.c.tenant_id == tenant_id)
        .order_by(dead_items.c.item_index)
        .limit(REDRIVE_MAX)
    )
    if item_indexes is None:
        query = query.where(_is_left())
    else:
        query = query.where(dead_items.c.item_index.in_(item_indexes))
    lines = [DeadLine(*row) for row in connection.execute(query)]
    if item_indexes is not None and len(lines) < len(set(item_indexes)):
        raise DeadLetterNotFoundError
    if not lines:
        raise DeadLettersRedrivenError if _has_any(connection, job_id) else DeadLetterNotFoundError
    appended = (
        sa.select(job_inputs.c.object_key, job_inputs.c.first_index)
        .where(job_inputs.c.job_id == job_id, job_inputs.c.first_index.is_not(None))
        .order_by(job_inputs.c.first_index)
    )
    sources = [Source(*row) for row in connection.execute(appended)]
    sources = [Source(job.input_key, 0), *sources]
    return Redrive(job, sources, lines, is_rest=item_indexes is None)


def _is_left() -> sa.ColumnElement[bool]:
    """Return the condition that nobody has redriven a dead letter, but for what ran nothing."""
    redrive = jobs.alias("redrive")
    was_refused = sa.exists().where(
        redrive.c.id == dead_items.c.redriven_job_id, redrive.c.state == JobState.FAILED.value
    )
    return dead_items.c.redriven_job_id.is_(None) | was_refused


def _has_any(connection: sa.Connection, job_id: UUID) -> bool:
    query = sa.select(sa.exists().where(dead_items.c.job_id == job_id))
    return bool(connection.scalar(query))


def mark_redriven(connection: sa.Connection, redrive: Redrive, new_job_id: UUID) -> None:
    """Remember which job took them up; call it in the transaction that adds that job.

    What was left when it was chosen may have been taken up since: then it raises
    DeadLettersRedrivenError, and nothing of that transaction may stay.
    """
    statement = sa.update(dead_items).where(
        dead_items.c.job_id == redrive.job.id,
        dead_items.c.item_index.in_([line.item_index for line in redrive.lines]),
    )
    if redrive.is_rest:
        # Judged on the newest rows: a rival that was faster has them, and their results.
        statement = statement.where(_is_left())
    marked = connection.execute(statement.values(redriven_job_id=new_job_id))
    if redrive.is_rest and marked.rowcount < len(redrive.lines):
        message = "Dead letters of the batch were redriven meanwhile; ask again for what is left."
        raise DeadLettersRedrivenError(message)


def new_redrive_job(
    redrive: Redrive,
    file_id: UUID,
    *,
    completion_window: str | None,
    metadata: dict[str, str] | None,
) -> NewJob:
    """Return the job to add: as the old one was, where nothing else is asked for."""
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
        options=JobOptions(deduplicate=old.deduplicate),
    )


def read_edited_lines(
    objects: ObjectStore, redrive: Redrive, edits: Mapping[str, Any]
) -> Iterator[bytes]:
    """Yield the lines to run again, without newlines, their bodies patched with `edits`.

    Without edits they are what they were, byte for byte. Raises InputFileRemovedError, InvalidFieldError,
    and what a store raises.
    """
    try:
        found = _all_lines(objects, redrive)
        for dead, line in zip(redrive.lines, found, strict=False):  # it ends early with a None
            if line is None:
                raise InputFileRemovedError
            yield edit_line(line, edits, dead.item_index) if edits else line
    except ObjectMissingError:
        raise InputFileRemovedError from None


def edit_line(line: bytes, edits: Mapping[str, Any], item_index: int) -> bytes:
    """Return the line of an item with its body patched.

    Raises InvalidFieldError: it holds what we can pass on and not write again, such as a number of
    thousands of digits. Without edits it runs as it is.
    """
    try:
        request = msgspec.json.decode(line)
        request["body"] = apply_merge_patch(request["body"], edits)
        return msgspec.json.encode(request)
    except (KeyError, RecursionError, TypeError, ValueError):
        message = f"Item {item_index} cannot be edited; without edits it can be redriven."
        raise InvalidFieldError(message, param="edits") from None


def apply_merge_patch(target: Any, patch: Any) -> Any:
    """Return `target` after a JSON merge patch: null removes a key. Source: RFC 7396."""
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
    """Raise InvalidFieldError for a patch nested too deep to apply."""
    if depth > _DEPTH_MAX:
        raise InvalidFieldError("The edits are nested too deep.", param="edits")
    inner = edits.values() if isinstance(edits, Mapping) else edits
    if isinstance(inner, Iterable) and not isinstance(inner, str):
        for value in inner:
            check_edits(value, depth + 1)


def _all_lines(objects: ObjectStore, redrive: Redrive) -> Iterator[bytes | None]:
    """Yield each line, from the file that holds it; None where there is none."""
    firsts = [source.first_index for source in redrive.sources]
    by_file = groupby(redrive.lines, key=lambda line: bisect_right(firsts, line.item_index) - 1)
    for place, lines in by_file:
        yield from _lines(objects, redrive.sources[place], list(lines))


def _lines(objects: ObjectStore, source: Source, lines: list[DeadLine]) -> Iterator[bytes | None]:
    offsets = [line.line_offset for line in lines if line.line_offset is not None]
    if len(offsets) == len(lines) <= _FAR_LINES_MAX:
        yield from read_lines_at(objects, source.key, offsets)
        return
    wanted = iter([line.item_index for line in lines])
    next_wanted = next(wanted, None)
    with objects.read(source.key) as blocks:
        found = input_lines(blocks, line_bytes_max=LINE_BYTES_CEILING)
        for index, (_, _, line) in enumerate(found, source.first_index):
            if index == next_wanted:
                yield line
                next_wanted = next(wanted, None)
            if next_wanted is None:
                return
    yield None  # the file ends before what was wanted
