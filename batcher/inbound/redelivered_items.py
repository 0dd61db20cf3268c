"""Items of redelivered chunks that have ended already: asked of Postgres, as a courtesy.

Only what lay on a partition when it was assigned can have been dispatched before. Executing twice
is waste, never an error: for a database that is away chunks wait for a while only.
"""

import logging
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from batcher.queueing.buffered_chunk import BufferedChunk
from core.clock import Clock
from storage.postgres.engines import DATABASE_AWAY
from topics.records.records import JobRef

_LOG = logging.getLogger(__name__)

CHUNKS_MAX = 500
"""Chunks in one query."""

DATABASE_WAIT_S_MAX = 60.0
"""Time that a database may be away until everything is taken as new, and time without a question
after which it counts as away anew."""

_PAUSE_S = 5.0
"""Time without a query after one that failed, while chunks wait for the next."""

_LONG_PAUSE_S = 30.0
"""The same when nothing waits any more."""

# The rows belong to the results room, which this one may not import; hence the text.
_FINISHED = sa.text(
    """
    SELECT asked.number, items.item_index
    FROM unnest(
        CAST(:jobs AS uuid[]), CAST(:days AS int[]), CAST(:firsts AS int[]), CAST(:lasts AS int[])
    ) WITH ORDINALITY AS asked (job_id, job_day, first_index, last_index, number)
    JOIN items
      ON items.job_day = asked.job_day
     AND items.job_id = asked.job_id
     AND items.item_index BETWEEN asked.first_index AND asked.last_index
    """
)

FindFinishedItems = Callable[[Sequence[BufferedChunk]], list[set[int]] | None]
"""Blocking: for each chunk, in order, the indexes of items that have ended. None: ask again."""


def has_item_rows(job: JobRef) -> bool:
    """Whether items of the job have rows when they have ended: of calls, the durable ones."""
    return job.call is None or job.call.durable


class FinishedItemLookup:
    """Looks up terminal rows; used from a thread."""

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        """`engine` has short timeouts: records wait for the answer."""
        self._engine, self._clock = engine, clock
        self._away_since_s: float | None = None
        self._asked_s = float("-inf")
        self._next_s = float("-inf")

    def __call__(self, chunks: Sequence[BufferedChunk]) -> list[set[int]] | None:
        """Return the ended indexes of each chunk.

        While the database is away None, which says that waiting may help, later empty sets.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._asked_s >= DATABASE_WAIT_S_MAX:
            self._away_since_s = None
        self._asked_s = now_s
        if self._away_since_s is None or now_s >= self._next_s:
            try:
                found = self._found(chunks)
            except DATABASE_AWAY:
                self._fail(now_s)
            else:
                self._away_since_s = None
                return found
        return None if self._waits(now_s) else [set() for _ in chunks]

    def _found(self, chunks: Sequence[BufferedChunk]) -> list[set[int]]:
        found: list[set[int]] = [set() for _ in chunks]
        asked = {
            "jobs": [held.job.job_id for held in chunks],
            "days": [held.job.day for held in chunks],
            "firsts": [held.items[0].index for held in chunks],
            "lasts": [held.items[-1].index for held in chunks],
        }
        with self._engine.connect() as connection:
            for number, index in connection.execute(_FINISHED, asked):
                found[number - 1].add(index)
        return found

    def _fail(self, now_s: float) -> None:
        if self._away_since_s is None:
            self._away_since_s = now_s
        waits = self._waits(now_s)
        self._next_s = self._clock.monotonic_s() + (_PAUSE_S if waits else _LONG_PAUSE_S)
        text = "wait" if waits else "are taken unchecked"
        _LOG.warning("redelivered items %s: the database is away", text)

    def _waits(self, now_s: float) -> bool:
        return self._away_since_s is not None and now_s - self._away_since_s < DATABASE_WAIT_S_MAX
