"""Looks up which items of redelivered chunks have finished, so that they are not executed again.

Only records that were on a partition when it was assigned can have been dispatched before. Repeated
execution is waste, never an error, so chunks wait for an unavailable database only for a while.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

import sqlalchemy as sa

from batcher.queueing.buffered_chunk import BufferedChunk
from core.clock import Clock
from storage.postgres.engines import DATABASE_UNAVAILABLE
from storage.postgres.items import items
from topics.records.codec import index_ranges
from topics.records.records import JobRef

_LOG = logging.getLogger(__name__)

CHUNKS_MAX = 500
"""Chunks in one query."""

DATABASE_WAIT_S_MAX = 60.0
"""How long chunks wait for an unavailable database before they count as new. After as long without
a lookup, the next failure starts a new outage."""

_RETRY_S = 5.0
"""Time between two queries while chunks wait for an unavailable database."""

_LATE_RETRY_S = 30.0
"""The same when chunks no longer wait."""

_RANGES: Final = (
    sa.func.unnest(
        sa.bindparam("numbers", type_=sa.ARRAY(sa.Integer)),
        sa.bindparam("job_ids", type_=sa.ARRAY(sa.Uuid)),
        sa.bindparam("days", type_=sa.ARRAY(sa.Integer)),
        sa.bindparam("first_indexes", type_=sa.ARRAY(sa.Integer)),
        sa.bindparam("last_indexes", type_=sa.ARRAY(sa.Integer)),
    )
    .table_valued(
        sa.column("number", sa.Integer),
        sa.column("job_id", sa.Uuid),
        sa.column("job_day", sa.Integer),
        sa.column("first_index", sa.Integer),
        sa.column("last_index", sa.Integer),
    )
    .render_derived(name="span")
)
"""The ranges of consecutive indexes of each chunk. From its lowest to its highest index there may
be all items of an ordered job (ADR 93)."""

_FINISHED: Final = sa.select(_RANGES.c.number, items.c.item_index).join_from(
    _RANGES,
    items,
    (items.c.job_day == _RANGES.c.job_day)
    & (items.c.job_id == _RANGES.c.job_id)
    & items.c.item_index.between(_RANGES.c.first_index, _RANGES.c.last_index),
)

FindFinishedItems = Callable[[Sequence[BufferedChunk]], list[set[int]] | None]
"""Blocking: for each chunk, in order, the indexes of its finished items. None: try again later."""


def has_item_rows(job: JobRef) -> bool:
    """Whether finished items of the job have rows: of online calls, the durable ones only."""
    return job.call is None or job.call.durable


class FinishedItemLookup:
    """Queries the rows of finished items; called from a thread."""

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        """`engine` should have short timeouts: records wait for its result."""
        self._engine, self._clock = engine, clock
        self._outage_since_s: float | None = None
        self._called_s = float("-inf")
        self._retry_at_s = float("-inf")

    def __call__(self, chunks: Sequence[BufferedChunk]) -> list[set[int]] | None:
        """Return the finished indexes of each chunk.

        While the database is unavailable: None as long as chunks should wait, then empty sets.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._called_s >= DATABASE_WAIT_S_MAX:
            self._outage_since_s = None
        self._called_s = now_s
        if self._outage_since_s is None or now_s >= self._retry_at_s:
            try:
                finished = self._query(chunks)
            except DATABASE_UNAVAILABLE:
                self._record_failure(now_s)
            else:
                self._outage_since_s = None
                return finished
        return None if self._should_wait(now_s) else [set() for _ in chunks]

    def _query(self, chunks: Sequence[BufferedChunk]) -> list[set[int]]:
        finished: list[set[int]] = [set() for _ in chunks]
        ranges = [
            (number, chunk.job.job_id, chunk.job.day, *bounds)
            for number, chunk in enumerate(chunks)
            for bounds in index_ranges([item.index for item in chunk.items])
        ]
        names = ("numbers", "job_ids", "days", "first_indexes", "last_indexes")
        parameters = dict(zip(names, map(list, zip(*ranges, strict=True)), strict=True))
        # The days again, as values: otherwise Postgres opens every partition.
        query = _FINISHED.where(items.c.job_day.in_({chunk.job.day for chunk in chunks}))
        with self._engine.connect() as connection:
            for number, index in connection.execute(query, parameters):
                finished[number].add(index)
        return finished

    def _record_failure(self, now_s: float) -> None:
        if self._outage_since_s is None:
            self._outage_since_s = now_s
        waits = self._should_wait(now_s)
        self._retry_at_s = self._clock.monotonic_s() + (_RETRY_S if waits else _LATE_RETRY_S)
        text = "wait" if waits else "are taken unchecked"
        _LOG.warning("redelivered items %s: the database is away", text)

    def _should_wait(self, now_s: float) -> bool:
        since_s = self._outage_since_s
        return since_s is not None and now_s - since_s < DATABASE_WAIT_S_MAX
