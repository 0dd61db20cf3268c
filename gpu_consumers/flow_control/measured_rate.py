"""How many items a replica answers in a second of its work.

Items that run at once may end at once, and then for a long time none does. So a window ends only
when as many were answered as ran at once: a group counts with all the time that it took. Time
without anything to do does not count. Pure: time is an argument, in monotonic seconds.
"""

from typing import Final

from gpu_consumers.flow_control.grants import smoothed_rate

WINDOW_S_MIN: Final = 0.2
"""A shorter window counts as one of this length: little work says little of the speed."""

WINDOW_S_MAX: Final = 30.0
"""A window that is as long ends with the next answer."""

_LONG_S: Final = 1.0  # from here on a window that goes on says how slow the engine is at least


class MeasuredRate:
    """The smoothed rate and the window that is open."""

    def __init__(self) -> None:
        """Nothing has run."""
        self.items_per_s = 0.0
        """0 while unknown."""
        self._answered = 0
        self._at_once = 0  # the most items that were here at once in the window
        self._busy_s = 0.0  # of the window, until `_since_s`
        self._since_s: float | None = None  # since when something runs, if something does

    def runs(self, in_flight: int, *, now_s: float) -> None:
        """Items arrived, and now there are so many."""
        if self._since_s is None:
            self._since_s = now_s
        self._at_once = max(self._at_once, in_flight)

    def rests(self, *, now_s: float) -> None:
        """Nothing is left to do."""
        self._busy_s, self._since_s = self._worked_s(now_s), None

    def answered(self, count: int) -> None:
        """So many were answered by the engine."""
        self._answered += count

    def look(self, in_flight: int, *, concurrency: int, now_s: float) -> None:
        """Take the window in if it holds enough; of `in_flight` items `concurrency` run at once."""
        busy_s = self._worked_s(now_s)
        together = max(1, min(concurrency, self._at_once))
        if self._answered >= together or (self._answered and busy_s >= WINDOW_S_MAX):
            window_s = max(WINDOW_S_MIN, busy_s)
            self.items_per_s = smoothed_rate(self.items_per_s, self._answered, window_s)
            self._answered, self._at_once, self._busy_s = 0, in_flight, 0.0
            self._since_s = now_s if in_flight else None
        elif busy_s >= _LONG_S:
            self.items_per_s = min(self.items_per_s, (self._answered + together) / busy_s)

    def _worked_s(self, now_s: float) -> float:
        return self._busy_s + (0.0 if self._since_s is None else now_s - self._since_s)
