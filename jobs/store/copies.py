"""Finds and stores the copies among a job's items, before the verdict on their file.

    read files ─► digests ─► copies of the new file ─► rows, fenced ─► [verdict]

The files alone determine the copies, so a process that starts again after a crash finds the same.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec
import sqlalchemy as sa

from jobs.expansion.emission import InputChangedError
from jobs.input.duplicates import DuplicateFinder
from jobs.input.input_files import InputFile
from jobs.input.line_reader import Line, custom_id_of
from jobs.leasing import leases
from jobs.leasing.leases import Lease
from jobs.tables.copies import item_copies
from jobs.tables.jobs import jobs

T = TypeVar("T")

_ROWS_MAX: Final = 5000  # of one transaction

_INSERT: Final = sa.text(
    """
    INSERT INTO item_copies (job_id, item_index, original_index, custom_id)
    SELECT jobs.id, found.item_index, found.original_index,
        CASE WHEN jobs.zero_retention THEN '' ELSE found.custom_id END
    FROM jobs, unnest(
        CAST(:indexes AS int[]), CAST(:originals AS int[]), CAST(:custom_ids AS text[])
    ) AS found (item_index, original_index, custom_id)
    WHERE jobs.id = :job_id
    """
).bindparams(sa.bindparam("job_id", type_=sa.Uuid))


class _Request(msgspec.Struct, gc=False):
    """Loosely typed, as in validation: only the last value of a repeated key was checked."""

    body: Any


_REQUEST: Final = msgspec.json.Decoder(_Request)


@dataclass(frozen=True, slots=True)
class Copy:
    """An item that takes over the result of its original."""

    item_index: int
    original_index: int
    custom_id: str


def store_copies(
    engine: sa.Engine,
    lease: Lease,
    files: Sequence[InputFile],
    read_lines: Callable[[str], Iterable[Line]],
) -> int:
    """Store the copies among the items of the last file; return how many.

    `files` are valid and in order; the original may be in any of them. Call it before the verdict
    on the last file: rows of an earlier call without a verdict are deleted first. Raises
    LeaseLostError, InputChangedError, and the errors of reading.
    """
    new = files[-1]
    found = find_copies(files, read_lines)
    count = 0
    while True:
        part = list(islice(found, _ROWS_MAX))
        with engine.begin() as connection:
            # Lock the job before its lease, in the common order: each row refers to the job.
            key = sa.select(jobs.c.id).where(jobs.c.id == lease.job_id)
            connection.execute(key.with_for_update(read=True, key_share=True))
            leases.lock_lease(connection, lease)
            if not count:
                _delete_from(connection, lease.job_id, new.first_index)
            if part:
                _insert(connection, lease.job_id, part)
        count += len(part)
        if len(part) < _ROWS_MAX:
            return count


def find_copies(
    files: Sequence[InputFile], read_lines: Callable[[str], Iterable[Line]]
) -> Iterator[Copy]:
    """Yield the copies among the items of the last file, in order.

    Reads that file twice if it has any. Raises InputChangedError.
    """
    seen = DuplicateFinder()
    for file in files:
        assert seen.count == file.first_index
        for _, _, line in read_lines(file.key):
            seen.add(_decoded(_body_of, line))
    new = files[-1]
    copies = seen.copies(new.first_index)
    copy = next(copies, None)
    if copy is None:
        return
    for index, (_, _, line) in enumerate(read_lines(new.key), new.first_index):
        if index == copy[0]:
            yield Copy(*copy, _decoded(custom_id_of, line))
            copy = next(copies, None)
            if copy is None:
                return
    raise InputChangedError(index=copy[0])


def find_copy_indexes(connection: sa.Connection, job_id: UUID, span: range) -> set[int]:
    """Return the indexes of `span` that are copies."""
    columns = item_copies.c
    query = sa.select(columns.item_index).where(
        columns.job_id == job_id,
        columns.item_index >= span.start,
        columns.item_index < span.stop,
    )
    return set(connection.scalars(query))


def _delete_from(connection: sa.Connection, job_id: UUID, first_index: int) -> None:
    columns = item_copies.c
    connection.execute(
        sa.delete(item_copies).where(columns.job_id == job_id, columns.item_index >= first_index)
    )


def _insert(connection: sa.Connection, job_id: UUID, copies: Sequence[Copy]) -> None:
    connection.execute(
        _INSERT,
        {
            "job_id": job_id,
            "indexes": [copy.item_index for copy in copies],
            "originals": [copy.original_index for copy in copies],
            "custom_ids": [copy.custom_id for copy in copies],
        },
    )


def _body_of(line: bytes) -> dict[str, Any]:
    body = _REQUEST.decode(line).body
    if type(body) is not dict:
        raise msgspec.ValidationError("body is not an object")
    return body


def _decoded(decode: Callable[[bytes], T], line: bytes | None) -> T:
    try:
        return decode(line or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InputChangedError from None
