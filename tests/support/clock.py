"""A clock that a test sets."""

from dataclasses import dataclass


@dataclass(slots=True)
class ManualClock:
    """A `core.clock.Clock` whose time moves when a test moves it."""

    now_s: float = 0.0
    wall_time_s: float | None = None  # of a host whose wall clock is wrong; None: same as now_s

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s if self.wall_time_s is None else self.wall_time_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds

    async def sleep(self, seconds: float) -> None:
        """Advance instead of waiting."""
        self.now_s += seconds
