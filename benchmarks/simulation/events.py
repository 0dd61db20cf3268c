"""Virtual time: events in the order of their times."""

import heapq
from collections.abc import Callable
from itertools import count


class Events:
    """Calls functions at their times, and is a `core.clock.Clock` of that time."""

    def __init__(self) -> None:
        """Start at 0 s without events."""
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return self._now_s

    def wall_s(self) -> float:
        """See `Clock`."""
        return self._now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call a function after a time."""
        heapq.heappush(self._events, (self._now_s + delay_s, next(self._numbers), call))

    def repeat(self, interval_s: float, call: Callable[[], None]) -> None:
        """Call a function at once, and again after each interval."""

        def run() -> None:
            call()
            self.call_later(interval_s, run)

        self.call_later(0.0, run)

    def run_until(self, until_s: float) -> None:
        """Run all events up to a time."""
        while self._events and self._events[0][0] <= until_s:
            self._now_s, _, call = heapq.heappop(self._events)
            call()
        self._now_s = until_s
