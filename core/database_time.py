"""Estimates the database's time from samples, without this host's wall clock.

Between samples the estimate advances with the monotonic clock, so a host whose wall clock is wrong
by minutes decides deadlines like every other host.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

_SAMPLES: Final = 32

Pick = Callable[[Iterable[float]], float]


class DatabaseTime:
    """An estimate that is always early or always late. One thread adds samples, any may read."""

    def __init__(self, pick: Pick, *, sample_count: int = _SAMPLES) -> None:
        """`pick` chooses among samples: `max` when they can only be late, `min` when only early.

        Only the newest `sample_count` count, because the database's clock may be adjusted.
        """
        self._pick = pick
        self._offsets: deque[float] = deque(maxlen=sample_count)
        self._offset: float | None = None

    def add_sample(self, database_s: float, *, monotonic_s: float) -> None:
        """Add a sample: the database's clock read `database_s` at `monotonic_s`."""
        self._offsets.append(database_s - monotonic_s)
        self._offset = self._pick(self._offsets)

    def now_s(self, monotonic_s: float) -> float | None:
        """Return the database's time, seconds since the epoch; None before the first sample."""
        return None if self._offset is None else self._offset + monotonic_s
