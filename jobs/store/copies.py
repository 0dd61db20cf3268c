"""The copies among a job's items: found and kept before its file counts, read while it is expanded.

    read files ─► digests ─► copies of the new file ─► rows, fenced ─► [verdict]

What is a copy follows from the files alone. So nothing has to be remembered while a job runs, and
whoever begins anew after a crash finds the same.
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
    """Typed as loosely as validation reads: of a repeated key only the last one was judged."""

    body: Any


_REQUEST: Final = msgspec.json.Decoder(_Request)


@dataclass(frozen=True, slots=True)
class Copy:
    """An item that is not executed."""

    item_index: int
    original_index: int
    custom_id: str


def store_copies(
    engine: sa.Engine,
    lease: Lease,
    files: Sequence[InputFile],
    read_lines: Callable[[str], Iterable[Line]],
) -> int:
    """Keep the copies among the items of the last of `files`; return how many.

    Copies are of items of any of them; they are in order, and were found valid. Call it before
    the verdict that makes the last one count: what a call left behind that got no verdict goes
    first. Raises LeaseLostError, InputChangedError, and what reading raises.
    """
    new = files[-1]
    found = find_copies(files, read_lines)
    count = 0
    while True:
        part = list(islice(found, _ROWS_MAX))
        with engine.begin() as connection:
            # The job before its lease, as everyone locks them: each row refers to the job.
            key = sa.select(jobs.c.id).where(jobs.c.id == lease.job_id)
            connection.execute(key.with_for_update(read=True, key_share=True))
            leases.lock_lease(connection, lease)
            if not count:
                _forget(connection, lease.job_id, new.first_index)
            if part:
                _insert(connection, lease.job_id, part)
        count += len(part)
        if len(part) < _ROWS_MAX:
            return count


def find_copies(
    files: Sequence[InputFile], read_lines: Callable[[str], Iterable[Line]]
) -> Iterator[Copy]:
    """Yield the copies among the items of the last file, in order. Reads it twice if there are any.

    Raises InputChangedError.
    """
    seen = DuplicateFinder()
    for file in files:
        assert seen.count == file.first_index
        for _, _, line in read_lines(file.key):
            seen.add(_decoded(_body_of, line))
    new = files[-1]
    copies = seen.copies(new.first_index)
    wanted = next(copies, None)
    if wanted is None:
        return
    for index, (_, _, line) in enumerate(read_lines(new.key), new.first_index):
        if index == wanted[0]:
            yield Copy(*wanted, _decoded(custom_id_of, line))
            wanted = next(copies, None)
            if wanted is None:
                return
    raise InputChangedError(index=wanted[0])


def find_copy_indexes(connection: sa.Connection, job_id: UUID, span: range) -> set[int]:
    """Return the indexes in `span` that are copies."""
    its = item_copies.c
    query = sa.select(its.item_index).where(
        its.job_id == job_id, its.item_index >= span.start, its.item_index < span.stop
    )
    return set(connection.scalars(query))


def _forget(connection: sa.Connection, job_id: UUID, first_index: int) -> None:
    its = item_copies.c
    connection.execute(
        sa.delete(item_copies).where(its.job_id == job_id, its.item_index >= first_index)
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
        raise msgspec.ValidationError("a body is no object")
    return body


def _decoded(decode: Callable[[bytes], T], line: bytes | None) -> T:
    try:
        return decode(line or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InputChangedError from None
