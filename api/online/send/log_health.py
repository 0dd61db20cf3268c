"""How the log takes what this process sends: the age of the oldest record that it owes us."""

import threading
from collections.abc import Callable
from itertools import count

from core.clock import Clock
from topics.clients.producer import OnDelivery


class LogHealth:
    """Remembers what is not acknowledged yet. Safe for threads."""

    def __init__(self, clock: Clock) -> None:
        """Nothing was sent."""
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = count()
        self._pending: dict[int, float] = {}  # in the order of sending

    def watch(self, then: Callable[[BaseException | None], object]) -> OnDelivery:
        """Count a record that is sent now; pass the result to its `on_delivery`."""
        number = next(self._numbers)
        with self._lock:
            self._pending[number] = self._clock.monotonic_s()

        def settle(failure: BaseException | None) -> None:
            with self._lock:
                self._pending.pop(number, None)
            then(failure)

        return settle

    def oldest_s(self) -> float:
        """Return the age of the oldest record that is not acknowledged; 0 without any."""
        with self._lock:
            oldest_s = next(iter(self._pending.values()), None)
        return 0.0 if oldest_s is None else self._clock.monotonic_s() - oldest_s
