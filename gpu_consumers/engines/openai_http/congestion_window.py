"""How an upstream is asked that refuses for its load: fewer items at once, each again later.

Such a refusal says that this was too much, and nothing of what the upstream has taken: that goes
on. So each takes a place from bulk, and rounds of answers give the places back, as a window of
congestion control follows losses (Chiu and Jain 1989; RFC 5681). A window of TCP is
halved, as it hears of a loss late; here what was refused is known at once: the rest is the room.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from core.clock import Clock
from core.errors import PoolBusyError, PoolUnavailableError
from gpu_consumers import metrics
from gpu_consumers.engines.engine_slots import EngineSlots

_LOG = logging.getLogger(__name__)

REFUSED_S_MAX: Final = 300.0
"""An item that was refused for so long goes back: another replica may have a better upstream."""

STATED_S_MAX: Final = 60.0
"""The longest wait that an upstream may name."""

_PAUSE_S: Final = 0.1
_PAUSE_S_MAX: Final = 5.0
_DOUBLINGS_MAX: Final = 10
_GROWTH_SHIFT: Final = 3
_TELLING: Final = 3  # refusals of one item that tell of the room; more of them tell of the item
_TELL_S: Final = 60.0


@dataclass(slots=True)
class LoadRefusals:
    """How often one item was refused, and since when."""

    count: int = 0
    since_s: float = 0.0


class CongestionWindow:
    """Bounds the places for bulk, and says when what was refused may be asked again."""

    def __init__(
        self, slots: EngineSlots, *, busy_s_max: float, clock: Clock, random: Callable[[], float]
    ) -> None:
        """After `busy_s_max` with nothing answered, and nothing to wait for, busy means away."""
        self._slots, self._busy_s_max = slots, busy_s_max
        self._clock, self._random = clock, random
        self._size = self._size_max = slots.total - slots.headroom
        self._round = 0  # answers since the size last changed
        self._rounds = 0  # since the last refusal
        self._away_at_s = -math.inf  # when busy means away; never while there was an answer
        self._tell_at_s = -math.inf
        self._pausing = 0  # online calls that hold their place through a pause
        self._rest: asyncio.TimerHandle | None = None
        metrics.UPSTREAM_PLACES.set(self._size)

    def answered(self) -> None:
        """The upstream has answered an item or a call."""
        self._away_at_s = math.inf
        self._end_rest()
        if self._size < self._size_max:
            self._round += 1
            if self._round >= self._size:
                self._rounds += 1
                step = self._size >> max(0, _GROWTH_SHIFT + 1 - self._rounds)
                self._resize(min(self._size_max, self._size + max(1, step)))

    def refused(self, refusals: LoadRefusals, failure: PoolBusyError) -> float:
        """Note the refusal of an item, or call, that holds a place; return the seconds to wait.

        Raises PoolUnavailableError when the upstream is away; the failure itself when it has
        refused this one for too long, while it answered others.
        """
        now_s = self._clock.monotonic_s()
        metrics.UPSTREAM_REFUSALS.inc()
        self._slots.refused_count += 1
        stated_s = min(failure.stated_s or 0.0, STATED_S_MAX)
        if not refusals.count:
            refusals.since_s = now_s
        if self._away_at_s == math.inf:
            self._away_at_s = now_s + self._busy_s_max + stated_s
        counts = self._slots.counts
        works = counts.bulk + counts.online - self._pausing > 1
        if not works and now_s > self._away_at_s:
            raise PoolUnavailableError(None, **failure.facts)
        if now_s - refusals.since_s > REFUSED_S_MAX:
            raise failure
        # Without bulk it is not bulk that is too much.
        if counts.bulk and refusals.count < _TELLING:
            self._shrink(max(1, min(self._size, counts.bulk) - 1), now_s)
        pause_s = _pause_s(refusals.count, stated_s, self._random())
        refusals.count += 1
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

    def _shrink(self, size: int, now_s: float) -> None:
        if self._size == self._size_max and now_s >= self._tell_at_s:
            _LOG.warning("the upstream is busy and gets less at once")
            self._tell_at_s = now_s + _TELL_S
        self._rounds = 0
        self._resize(size)

    def _resize(self, size: int) -> None:
        self._size, self._round = size, 0
        metrics.UPSTREAM_PLACES.set(size)
        if self._rest is None:
            self._slots.limit_bulk(size)

    def _end_rest(self) -> None:
        """Go on with what has not been asked: until then each would be refused once more."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
            self._slots.limit_bulk(self._size)


def _pause_s(refusal_count: int, stated_s: float, fraction: float) -> float:
    """Return a doubled pause, or what was stated; jittered, as many were refused together."""
    doubled_s = min(_PAUSE_S * 2.0 ** min(refusal_count, _DOUBLINGS_MAX), _PAUSE_S_MAX)
    return max(doubled_s * (1 + fraction) / 2, stated_s)
