"""Tells an upstream that fails everything from items that fail: when to believe its failures."""

from core.clock import Clock


class CircuitBreaker:
    """Opens when so many answers in a row were failures that may pass, and no other came between.

    While it is open a failure is the upstream's and charges no item. An answer of any other kind
    closes it, also one to an online call. After `open_s_max` without one its failures are believed
    again: then it is the items that fail, and their jobs must come to an end.
    """

    def __init__(self, failures_max: int, open_s_max: float, clock: Clock) -> None:
        """Closed."""
        self._failures_max = failures_max
        self._open_s_max = open_s_max
        self._clock = clock
        self._failures = 0  # in a row
        self._opened_s: float | None = None  # when it opened; also set while it is believed again

    def answered(self) -> None:
        """The upstream did its work on an item or an online call, well or with a refusal."""
        if self._failures:
            self._failures = 0
            self._opened_s = None

    def failed(self) -> bool:
        """Note a failure that may pass; return whether it is the upstream's."""
        self._failures += 1
        if self._failures < self._failures_max:
            return False
        now_s = self._clock.monotonic_s()
        if self._opened_s is None:
            self._opened_s = now_s
        return now_s - self._opened_s < self._open_s_max
