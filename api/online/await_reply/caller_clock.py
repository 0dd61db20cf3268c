"""The clock that deadlines of calls are by on the log: of one API process, and steady."""

from core.clock import Clock


class CallerClock:
    """Goes on from the wall time at its construction as the monotonic clock does.

    Batchers and replicas compare deadlines with what news say the time is (`CallerNews.now_s`). A
    clock that is wrong does no harm then, but one that is set while calls are open would end them.
    """

    def __init__(self, clock: Clock) -> None:
        """Begin at the time that `clock` says."""
        self._clock = clock
        self._origin_s = clock.wall_s() - clock.monotonic_s()

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return self._clock.monotonic_s()

    def now_s(self) -> float:
        """Seconds since the epoch, as wrong as the wall clock was then: for differences alone."""
        return self._origin_s + self._clock.monotonic_s()
