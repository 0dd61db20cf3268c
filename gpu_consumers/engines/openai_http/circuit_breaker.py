"""A circuit breaker: attributes consecutive transient failures to the upstream, not to items."""

from core.clock import Clock


class CircuitBreaker:
    """Opens after `failures_max` consecutive transient failures of items.

    While it is open a failure is the upstream's and charges no item. Any other answer closes it,
    also one to an online call. After `open_s_max` without such an answer, failures are charged to
    items again: their jobs must end.
    """

    def __init__(self, failures_max: int, open_s_max: float, clock: Clock) -> None:
        """Start closed."""
        self._failures_max = failures_max
        self._open_s_max = open_s_max
        self._clock = clock
        self._failures = 0  # consecutive
        self._opened_s: float | None = None  # when it opened; kept after `open_s_max`

    def record_success(self) -> None:
        """Record an answer of the upstream to an item or call, also a refusal of the request."""
        if self._failures:
            self._failures = 0
            self._opened_s = None

    def record_failure(self) -> bool:
        """Record a transient failure of an item; return whether it is the upstream's."""
        self._failures += 1
        if self._failures < self._failures_max:
            return False
        now_s = self._clock.monotonic_s()
        if self._opened_s is None:
            self._opened_s = now_s
        return now_s - self._opened_s < self._open_s_max
