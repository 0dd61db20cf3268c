"""The clock that code takes as an argument, so that tests can control time."""

import time
from dataclasses import dataclass
from typing import Protocol


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
