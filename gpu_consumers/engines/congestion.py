"""How an upstream is asked that refuses for its load: fewer items at once, each again later.

Such a refusal says that this was too much, and nothing of what the upstream has taken: that goes
on. So each takes a place from bulk, and a round of answers gives an eighth of the places back, as a
window of congestion control follows losses (Chiu and Jain 1989; RFC 5681). A window of TCP is
halved, as it hears of a loss late; here what was refused is known at once: the rest is the room.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from core.clock import Clock
from core.errors import PoolUnavailableError
from gpu_consumers.engines.slots import Slots

REFUSED_S_MAX: Final = 300.0
"""An item that was refused for so long goes back: another replica may have a better upstream."""

STATED_S_MAX: Final = 60.0
"""The longest wait that an upstream may name."""

_PAUSE_S: Final = 0.1
_PAUSE_S_MAX: Final = 5.0
_DOUBLINGS_MAX: Final = 10
_GROWTH: Final = 8


class PoolBusyError(PoolUnavailableError):
    """The upstream refuses an item for its load; it has not begun."""

    code = "pool_busy"

    def __init__(
        self, message: str | None = None, *, stated_s: float | None = None, **facts: object
    ) -> None:
        """`stated_s` is how long the upstream asks to be left alone."""
        super().__init__(message, **facts)
        self.stated_s = stated_s


@dataclass(slots=True)
class Refusals:
    """How often one item was refused, and since when."""

    count: int = 0
    since_s: float = 0.0


class Congestion:
    """Bounds the places for bulk, and says when what was refused may be asked again."""

    def __init__(
        self, slots: Slots, *, busy_s_max: float, clock: Clock, random: Callable[[], float]
    ) -> None:
        """After `busy_s_max` with nothing answered, and nothing to wait for, busy means away."""
        self._slots, self._busy_s_max = slots, busy_s_max
        self._clock, self._random = clock, random
        self._size = self._size_max = slots.total - slots.headroom
        self._round = 0  # answers since the size last changed
        self._answered_s = float("-inf")
        self._pausing = 0  # online calls that hold their place through a pause
        self._rest: asyncio.TimerHandle | None = None

    def answered(self) -> None:
        """The upstream has answered an item or a call."""
        self._answered_s = self._clock.monotonic_s()
        self._end_rest()
        if self._size < self._size_max:
            self._round += 1
            if self._round >= self._size:
                self._resize(min(self._size_max, self._size + max(1, self._size // _GROWTH)))

    def refused(self, refusals: Refusals, failure: PoolBusyError) -> float:
        """Note the refusal of an item, or call, that holds a place; return the seconds to wait.

        Raises the failure when the upstream is away, or was busy for too long.
        """
        now_s = self._clock.monotonic_s()
        if not refusals.count:
            refusals.since_s = now_s
        counts = self._slots.counts
        works = counts.bulk + counts.online - self._pausing > 1
        is_silent = not works and now_s - self._answered_s > self._busy_s_max
        if is_silent or now_s - refusals.since_s > REFUSED_S_MAX:
            raise failure
        pause_s = _pause_s(refusals.count, failure.stated_s, self._random())
        refusals.count += 1
        self._resize(max(1, min(self._size, counts.bulk) - 1))
        if not works and self._rest is None:
            self._slots.limit_bulk(0)
            self._rest = asyncio.get_running_loop().call_later(pause_s, self._end_rest)
        return pause_s

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """An online call waits: it holds a place, and none of the upstream."""
        self._pausing += 1
        try:
            yield
        finally:
            self._pausing -= 1

    def _resize(self, size: int) -> None:
        self._size, self._round = size, 0
        if self._rest is None:
            self._slots.limit_bulk(size)

    def _end_rest(self) -> None:
        """Go on with what has not been asked: until then each would be refused once more."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
            self._slots.limit_bulk(self._size)


def _pause_s(refusal_count: int, stated_s: float | None, fraction: float) -> float:
    """Return a doubled pause, or what was stated; jittered, as many were refused together."""
    doubled_s = min(_PAUSE_S * 2.0 ** min(refusal_count, _DOUBLINGS_MAX), _PAUSE_S_MAX)
    return max(doubled_s * (1 + fraction) / 2, min(stated_s or 0.0, STATED_S_MAX))
