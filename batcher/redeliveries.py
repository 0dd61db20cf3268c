"""Items of redelivered chunks that have ended already: asked of Postgres, as a courtesy.

Only what lay on a partition when it was assigned can have been dispatched before. While the
database is away everything is taken as new: executing twice is waste, never an error.
"""

import logging
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from batcher.held import Held
from core.clock import Clock
from storage.postgres import DATABASE_AWAY

_LOG = logging.getLogger(__name__)

CHUNKS_MAX = 500
"""Chunks in one query."""

_AWAY_PAUSE_S = 30.0
"""Time without a query after one that failed."""

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

FinishedIndexes = Callable[[Sequence[Held]], list[set[int]]]
"""Blocking: for each chunk, in order, the indexes of items that have ended."""


class FinishedItems:
    """Looks up terminal rows; used from a thread."""

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        """`engine` has short timeouts: records wait for the answer."""
        self._engine, self._clock = engine, clock
        self._away_until_s = 0.0

    def __call__(self, chunks: Sequence[Held]) -> list[set[int]]:
        """Return the ended indexes of each chunk; empty sets while the database is away."""
        found: list[set[int]] = [set() for _ in chunks]
        if self._clock.monotonic_s() < self._away_until_s:
            return found
        asked = {
            "jobs": [held.job.job_id for held in chunks],
            "days": [held.job.day for held in chunks],
            "firsts": [held.items[0].index for held in chunks],
            "lasts": [held.items[-1].index for held in chunks],
        }
        try:
            with self._engine.connect() as connection:
                for number, index in connection.execute(_FINISHED, asked):
                    found[number - 1].add(index)
        except DATABASE_AWAY:
            self._away_until_s = self._clock.monotonic_s() + _AWAY_PAUSE_S
            _LOG.warning("redelivered items are taken unchecked: the database is away")
        return found
