"""Finds and stores the copies among a job's items, before the verdict on their file.

    read files ─► digests ─► copies of the new file ─► rows, fenced ─► [verdict]

Memory: 16 bytes per item while a file is read, about 60 while the digests are sorted, whatever the
file contains. The files alone determine the copies, so a process that starts again after a crash
finds the same.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any, Final
from uuid import UUID

import msgspec
import numpy as np
import sqlalchemy as sa

from jobs.input.input_files import InputFile
from jobs.input.line_reader import InputChangedError, Line, custom_id_of, decode_validated
from jobs.leasing import leases
from jobs.leasing.leases import Lease
from jobs.tables.jobs import jobs
from jobs.tables.retries import item_copies

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
                columns = item_copies.c
                is_of_new = (columns.job_id == lease.job_id, columns.item_index >= new.first_index)
                connection.execute(sa.delete(item_copies).where(*is_of_new))
            if part:
                values = {
                    "job_id": lease.job_id,
                    "indexes": [copy.item_index for copy in part],
                    "originals": [copy.original_index for copy in part],
                    "custom_ids": [copy.custom_id for copy in part],
                }
                connection.execute(_INSERT, values)
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
            seen.add(decode_validated(_body_of, line, seen.count))
    new = files[-1]
    copies = seen.copies(new.first_index)
    copy = next(copies, None)
    if copy is None:
        return
    for index, (_, _, line) in enumerate(read_lines(new.key), new.first_index):
        if index == copy[0]:
            yield Copy(*copy, decode_validated(custom_id_of, line, index))
            copy = next(copies, None)
            if copy is None:
                return
    raise InputChangedError(index=copy[0])


def find_copy_indexes(connection: sa.Connection, job_id: UUID, indexes: Sequence[int]) -> set[int]:
    """Return those of `indexes` that are copies."""
    columns = item_copies.c
    # One array parameter: a statement is limited to 65,535 parameters.
    is_asked = columns.item_index == sa.any_(sa.literal(list(indexes), sa.ARRAY(sa.Integer)))
    query = sa.select(columns.item_index).where(columns.job_id == job_id, is_asked)
    return set(connection.scalars(query))


def _body_of(line: bytes) -> dict[str, Any]:
    body = _REQUEST.decode(line).body
    if type(body) is not dict:
        raise msgspec.ValidationError("body is not an object")
    return body


DIGEST_BYTES: Final = 16
"""Enough to exclude chance collisions; a deliberate one could only mix a client's own items."""


def body_digest(body: Mapping[str, Any]) -> bytes:
    """Return the digest of a body; spacing, escapes and the order of its own fields do not count.

    The order inside nested objects counts: the order of a schema's properties, for example, steers
    the response. The endpoint is the job's.
    """
    canonical = msgspec.json.encode(dict(sorted(body.items())))
    return blake2b(canonical, digest_size=DIGEST_BYTES).digest()


_BATCH_COPIES: Final = 10_000  # Python integers are large


class DuplicateFinder:
    """Collects the bodies of a job's items in order."""

    def __init__(self) -> None:
        self._digests = bytearray()

    @property
    def count(self) -> int:
        """Items that were added."""
        return len(self._digests) // DIGEST_BYTES

    def add(self, body: Mapping[str, Any]) -> None:
        """Add the next item."""
        self._digests += body_digest(body)

    def copies(self, first_index: int = 0) -> Iterator[tuple[int, int]]:
        """Yield each copy from `first_index` on with the first identical item, in copy order.

        An original is never a copy itself.
        """
        digests = np.frombuffer(self._digests, dtype="<u8").reshape(-1, 2)
        order = np.lexsort((digests[:, 1], digests[:, 0])).astype(np.int32)  # equal ones in order
        is_first = np.ones(len(order), dtype=bool)
        for half in (0, 1):
            column = digests[order, half]
            differs = column[1:] != column[:-1]
            is_first[1:] = differs if half == 0 else is_first[1:] | differs
        originals = order[is_first][np.cumsum(is_first, dtype=np.int32) - 1]
        is_copy = ~is_first & (order >= first_index)
        copies, originals = order[is_copy], originals[is_copy]
        by_index = np.argsort(copies)
        for first in range(0, len(copies), _BATCH_COPIES):
            part = by_index[first : first + _BATCH_COPIES]
            yield from zip(copies[part].tolist(), originals[part].tolist(), strict=True)
