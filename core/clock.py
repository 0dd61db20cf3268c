"""Time as an argument: code that decides takes a `Clock`, so tests can hold it still."""

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Where a process reads time. Expiry itself is judged by the database alone."""

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
