"""Ends a transfer that is so slow that it would hold the command for days."""

import time
from collections.abc import Callable
from typing import Final

from registry.sources.errors import ModelSourceError

WINDOW_S: Final = 60.0


class LowestRate:
    """Requires a rate of one transfer over each minute of reading."""

    def __init__(self, bytes_per_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds; a rate of 0 requires nothing."""
        self._bytes_min = bytes_per_s * WINDOW_S
        self._rate, self._clock = bytes_per_s, clock
        self._read_at = clock()
        self._elapsed_s, self._bytes = 0.0, 0

    def resume(self) -> None:
        """Count time from now on: connecting, and pauses after a broken transfer, do not count."""
        self._read_at = self._clock()

    def advance(self, count: int) -> None:
        """Add bytes that were read. Raises ModelSourceError after a minute with too few of them."""
        now = self._clock()
        self._elapsed_s += now - self._read_at
        self._read_at = now
        self._bytes += count
        if self._elapsed_s < WINDOW_S:
            return
        if self._bytes < self._bytes_min:
            raise ModelSourceError(
                f"The source sent less than {self._rate} bytes/s for a minute: try again later, or "
                "lower MILLRACE_SOURCES_BYTES_PER_S_MIN."
            )
        self._elapsed_s, self._bytes = 0.0, 0
