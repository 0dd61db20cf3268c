"""What the database's clock says now, learned from samples; no clock of this host takes part.

Between samples only the time between two of our own monotonic readings counts, so a host whose
clock is wrong by minutes judges deadlines as every other.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

_SAMPLES: Final = 32

Pick = Callable[[Iterable[float]], float]


class DatabaseTime:
    """An estimate that errs to one side. One thread adds samples, any may ask."""

    def __init__(self, pick: Pick, *, sample_count: int = _SAMPLES) -> None:
        """`pick` is `max` when samples can only be late, `min` when they can only be early.

        The newest `sample_count` are kept: the database's clock may be set.
        """
        self._pick = pick
        self._offsets: deque[float] = deque(maxlen=sample_count)
        self._offset: float | None = None

    def add_sample(self, database_s: float, *, monotonic_s: float) -> None:
        """The database's clock said `database_s`, as far as we know at `monotonic_s`."""
        self._offsets.append(database_s - monotonic_s)
        self._offset = self._pick(self._offsets)

    def now_s(self, monotonic_s: float) -> float | None:
        """Return seconds since the epoch by the database, None before the first sample."""
        return None if self._offset is None else self._offset + monotonic_s
