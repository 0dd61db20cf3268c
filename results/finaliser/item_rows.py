"""Reads the item rows of a settled job in index order, in constant memory, and decrypts them.

A page is read completely before its first row is yielded, so no transaction is open while the
caller copies objects of the store, which may take long. In zero-retention jobs an answer that
cannot be read becomes an error of its line and fails neither the file nor the page.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast
from uuid import UUID

import sqlalchemy as sa

from core.clock import SystemClock
from core.errors import MillraceError
from core.object_names import job_key_name
from results.finaliser.output_lines import ItemRow
from storage.crypto.body_ciphers import (
    BodyCipher,
    BodyDirection,
    BodyUnreadableError,
    CipherContext,
)
from storage.crypto.data_keys import DataKeyDestroyedError, DataKeys
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectStore, read_object
from storage.postgres.engines import raw_cursor
from storage.postgres.items import item_columns

PAGE_ITEMS: Final = 5000
"""Rows of one page at most; the lease is checked between pages."""

PAGE_BYTES: Final = 4 * 1024 * 1024
"""A page ends with the chunk that reaches these bytes of bodies."""

CHUNK_ROWS: Final = 100  # fetched at once; with bodies of 512 KiB that is 50 MiB

PAGE_OPTIONS: Final = "SET LOCAL enable_sort = off"
"""The primary key has the order already, which the planner does not always use."""

READ_ITEMS: Final = f"""
SELECT {item_columns(ItemRow._fields)}
FROM items
WHERE job_day = %b::int AND job_id = %b::uuid
    AND item_index >= %b::int AND item_index < %b::int
ORDER BY item_index
"""  # noqa: S608  no outside input

ANSWER_UNREADABLE: Final = "answer_unreadable"


class RowNotFoundError(MillraceError):
    """A settled job has no row for one of its items."""

    code = "row_missing"


def item_rows(
    engine: sa.Engine, job_id: UUID, *, day: int, total_count: int, check: Callable[[], None]
) -> Iterator[ItemRow]:
    """Yield one row for every index below `total_count`.

    `check` is called before each page, and before each row whose body is an object.
    Raises RowNotFoundError, and what `check` raises.
    """
    expected, row_limit = 0, PAGE_ITEMS
    while expected < total_count:
        check()
        indexes = range(expected, min(expected + row_limit, total_count))
        rows, size_bytes = _page(engine, job_id, day, indexes)
        row_limit = _next_row_limit(len(rows), size_bytes)
        if not rows:
            raise RowNotFoundError(job=job_id, index=expected)
        for row in rows:
            if row.item_index != expected:
                raise RowNotFoundError(job=job_id, index=expected)
            if row.body_key is not None:
                check()
            expected += 1
            yield row


def _next_row_limit(row_count: int, size_bytes: int) -> int:
    """Return how many rows of that average size reach PAGE_BYTES: a cancelled query is costly."""
    fitting = PAGE_BYTES * row_count // max(1, size_bytes)
    return max(CHUNK_ROWS, min(PAGE_ITEMS, fitting // CHUNK_ROWS * CHUNK_ROWS))


def _page(engine: sa.Engine, job_id: UUID, day: int, indexes: range) -> tuple[list[ItemRow], int]:
    """Return rows from the start of `indexes` until PAGE_BYTES, and the bytes of their bodies."""
    rows: list[ItemRow] = []
    size_bytes = 0
    with engine.connect() as connection:
        cursor = raw_cursor(connection)
        cursor.execute(PAGE_OPTIONS)
        parameters = [day, job_id, indexes.start, indexes.stop]
        stream = cast(
            "Generator[tuple[Any, ...]]",
            cursor.stream(READ_ITEMS, parameters, binary=True, size=CHUNK_ROWS),
        )
        with contextlib.closing(stream):  # cancels the query when rows are left
            for row in map(ItemRow._make, stream):
                rows.append(row)
                size_bytes += len(row.body or b"")
                is_full = size_bytes >= PAGE_BYTES and len(rows) % CHUNK_ROWS == 0
                if is_full and len(rows) < len(indexes):
                    break
    return rows, size_bytes


@dataclass(slots=True)
class RowDecrypter:
    """Decrypts the rows of one job. Not thread-safe."""

    store: ObjectStore
    job_id: UUID
    _cipher: BodyCipher | None = field(default=None, init=False, repr=False)
    _is_key_gone: bool = field(default=False, init=False)  # permanent

    def decrypt(self, row: ItemRow, *, with_objects: bool = True) -> ItemRow:
        """Return the row with its answer decrypted; an answer in an object is read into the row.

        Without `with_objects` objects are not read. Raises what a store raises, except for missing
        objects: their rows are returned unchanged.
        """
        encrypted = row.body
        is_object = row.body_key is not None and with_objects and row.status_code
        if self._is_key_gone and (encrypted or is_object):
            return _failed(row, DataKeyDestroyedError.code)
        try:
            if is_object:
                assert row.body_key is not None
                # Its size was bounded when it was stored, and one is held at a time.
                encrypted = read_object(self.store, row.body_key)
            if not encrypted:
                return row
            index = row.item_index if row.copied_from is None else row.copied_from
            body = self._key().decrypt(
                encrypted, CipherContext(self.job_id, BodyDirection.OUT, index)
            )
            return row._replace(body=body, body_key=None)
        except DataKeyDestroyedError:
            self._is_key_gone = True
            return _failed(row, DataKeyDestroyedError.code)
        except BodyUnreadableError:
            return _failed(row, ANSWER_UNREADABLE)
        except ObjectNotFoundError:
            return row

    def _key(self) -> BodyCipher:
        if self._cipher is None:
            self._cipher = DataKeys(self.store, SystemClock()).load(job_key_name(self.job_id))
        return self._cipher


def _failed(row: ItemRow, code: str) -> ItemRow:
    return row._replace(
        status_code=0, error_code=code, error_message=None, body=None, body_key=None
    )
