"""Measures how many items per second of work a replica answers.

Items that start together may end together, with no answer for a long time before. So a window ends
when as many items were answered as ran at once: their whole duration counts. Idle time does not
count. Pure: time is an argument, in monotonic seconds.
"""

from typing import Final

from gpu_consumers.flow_control.grants import smoothed_rate

WINDOW_S_MIN: Final = 0.2
"""A shorter window counts as one of this length: little work says little about the rate."""

WINDOW_S_MAX: Final = 30.0
"""A window of this length ends with the next answer."""

_LONG_WINDOW_S: Final = 1.0  # from this length on, an open window limits the rate


class MeasuredRate:
    """The smoothed rate and the open window."""

    def __init__(self) -> None:
        self.items_per_s = 0.0
        """0 while unknown."""
        self._answered = 0
        self._in_flight_max = 0  # in the window
        self._busy_s = 0.0  # of the window, until `_busy_since_s`
        self._busy_since_s: float | None = None

    def mark_busy(self, in_flight: int, *, now_s: float) -> None:
        """Items have arrived; `in_flight` are here now."""
        if self._busy_since_s is None:
            self._busy_since_s = now_s
        self._in_flight_max = max(self._in_flight_max, in_flight)

    def mark_idle(self, *, now_s: float) -> None:
        """The last item has ended."""
        self._busy_s, self._busy_since_s = self._window_s(now_s), None

    def add_answered(self, count: int) -> None:
        """Count items that the engine has answered."""
        self._answered += count

    def update(self, in_flight: int, *, concurrency: int, now_s: float) -> None:
        """Close the window if it holds enough answers; `concurrency` items run at once."""
        busy_s = self._window_s(now_s)
        together = max(1, min(concurrency, self._in_flight_max))
        if self._answered >= together or (self._answered and busy_s >= WINDOW_S_MAX):
            window_s = max(WINDOW_S_MIN, busy_s)
            self.items_per_s = smoothed_rate(self.items_per_s, self._answered, window_s)
            self._answered, self._in_flight_max, self._busy_s = 0, in_flight, 0.0
            self._busy_since_s = now_s if in_flight else None
        elif busy_s >= _LONG_WINDOW_S:
            self.items_per_s = min(self.items_per_s, (self._answered + together) / busy_s)

    def _window_s(self, now_s: float) -> float:
        return self._busy_s + (0.0 if self._busy_since_s is None else now_s - self._busy_since_s)
