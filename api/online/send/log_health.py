"""Health of the log as seen by this process: the age of the oldest unacknowledged record."""

import threading
from collections.abc import Callable
from itertools import count

from core.clock import Clock
from topics.clients.producer import OnDelivery


class LogHealth:
    """Tracks the records that are not acknowledged yet. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = count()
        self._pending: dict[int, float] = {}  # in the order of sending

    def track(self, then: Callable[[BaseException | None], object]) -> OnDelivery:
        """Track a record that is sent now. Pass the result to the producer as `on_delivery`."""
        number = next(self._numbers)
        with self._lock:
            self._pending[number] = self._clock.monotonic_s()

        def on_delivery(failure: BaseException | None) -> None:
            with self._lock:
                self._pending.pop(number, None)
            then(failure)

        return on_delivery

    def oldest_pending_s(self) -> float:
        """Return the age of the oldest unacknowledged record; 0 when there is none."""
        with self._lock:
            oldest_pending_s = next(iter(self._pending.values()), None)
        return 0.0 if oldest_pending_s is None else self._clock.monotonic_s() - oldest_pending_s
