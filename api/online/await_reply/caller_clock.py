"""The steady clock that deadlines of calls refer to on the log."""

from core.clock import Clock


class CallerClock:
    """Starts at the wall time and advances with the monotonic clock.

    Batchers and replicas compare deadlines with the time in this caller's heartbeats
    (`CallerHeartbeat.now_s`). A wrong wall clock is harmless then; one that is adjusted while calls
    are open would end them.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._origin_s = clock.wall_s() - clock.monotonic_s()

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return self._clock.monotonic_s()

    def now_s(self) -> float:
        """Return seconds since the epoch, with the error of the wall clock at the start."""
        return self._origin_s + self._clock.monotonic_s()
