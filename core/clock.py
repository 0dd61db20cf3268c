"""The clock that code takes as an argument, and an estimate of the database's clock."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

_SAMPLES: Final = 32

Pick = Callable[[Iterable[float]], float]


class Clock(Protocol):
    """A process's source of time. Expiry is decided by the database's clock alone."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start; for waits and ages inside one process."""
        ...

    def wall_s(self) -> float:
        """Seconds since the epoch by this host; for log lines and display, never for expiry."""
        ...


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The clock of this host."""

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def wall_s(self) -> float:
        """See `Clock`."""
        return time.time()


class DatabaseTime:
    """An estimate of the database's time that is always early or always late, from samples.

    Between samples it advances with the monotonic clock, so a host whose wall clock is wrong by
    minutes decides deadlines like every other host. One thread adds samples, any may read.
    """

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
