"""Which failures are the upstream's and not an item's: refusals because of load, failures in a row.

Each refusal takes a slot from bulk and postpones the refused request; rounds of answers return
slots, as a congestion window follows losses (Chiu and Jain 1989; RFC 5681). TCP halves its window
because it learns of a loss late. Here a refusal is known at once, and the requests still in flight
show the upstream's capacity.
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
"""Time after which a refused item is requeued: another replica may have another upstream."""

STATED_S_MAX: Final = 60.0
"""The longest Retry-After that is honoured."""

_PAUSE_S: Final = 0.1
_PAUSE_S_MAX: Final = 5.0
_DOUBLINGS_MAX: Final = 10
_GROWTH_SHIFT: Final = 3
_SIGNIFICANT_REFUSALS: Final = 3  # of one item; further ones say nothing about the load
_LOG_INTERVAL_S: Final = 60.0


@dataclass(slots=True)
class LoadRefusals:
    """How often one item was refused, and since when."""

    count: int = 0
    since_s: float = 0.0


class CongestionWindow:
    """Bounds the bulk slots, and decides when refused requests are retried."""

    def __init__(
        self, slots: EngineSlots, *, busy_s_max: float, clock: Clock, random: Callable[[], float]
    ) -> None:
        """`busy_s_max`: without answers and requests in flight for longer, it is unavailable."""
        self._slots, self._busy_s_max = slots, busy_s_max
        self._clock, self._random = clock, random
        self._size = self._size_max = slots.total - slots.headroom
        self._answers = 0  # since the size last changed
        self._rounds = 0  # since the last refusal
        self._unavailable_at_s = -math.inf  # infinite from an answer to the next refusal
        self._log_at_s = -math.inf
        self._paused_calls = 0  # online calls that keep their slot during a pause
        self._bulk_pause: asyncio.TimerHandle | None = None
        metrics.UPSTREAM_PLACES.set(self._size)

    def record_answer(self) -> None:
        """Record that the upstream answered an item or a call."""
        self._unavailable_at_s = math.inf
        self._end_bulk_pause()
        if self._size < self._size_max:
            self._answers += 1
            if self._answers >= self._size:
                self._rounds += 1
                step = self._size >> max(0, _GROWTH_SHIFT + 1 - self._rounds)
                self._resize(min(self._size_max, self._size + max(1, step)))

    def record_refusal(self, refusals: LoadRefusals, failure: PoolBusyError) -> float:
        """Record the refusal of an item or call that holds a slot; return the seconds to wait.

        Raises PoolUnavailableError if the upstream is unavailable, and `failure` itself if this
        item was refused for too long while others were answered.
        """
        now_s = self._clock.monotonic_s()
        metrics.UPSTREAM_REFUSALS.inc()
        self._slots.refused_count += 1
        stated_s = min(failure.stated_s or 0.0, STATED_S_MAX)
        if not refusals.count:
            refusals.since_s = now_s
        if self._unavailable_at_s == math.inf:
            self._unavailable_at_s = now_s + self._busy_s_max + stated_s
        counts = self._slots.counts
        has_others_in_flight = counts.bulk + counts.online - self._paused_calls > 1
        if not has_others_in_flight and now_s > self._unavailable_at_s:
            raise PoolUnavailableError(None, **failure.facts)
        if now_s - refusals.since_s > REFUSED_S_MAX:
            raise failure
        # Without bulk items in flight, fewer bulk slots would not help.
        if counts.bulk and refusals.count < _SIGNIFICANT_REFUSALS:
            self._shrink(max(1, min(self._size, counts.bulk) - 1), now_s)
        pause_s = _pause_s(refusals.count, stated_s, self._random())
        refusals.count += 1
        if not has_others_in_flight and self._bulk_pause is None:
            self._slots.set_bulk_limit(0)
            call_later = asyncio.get_running_loop().call_later
            self._bulk_pause = call_later(pause_s, self._end_bulk_pause)
        return pause_s

    @contextmanager
    def paused_call(self) -> Iterator[None]:
        """Count an online call that holds a slot but has no request in flight."""
        self._paused_calls += 1
        try:
            yield
        finally:
            self._paused_calls -= 1

    def _shrink(self, size: int, now_s: float) -> None:
        if self._size == self._size_max and now_s >= self._log_at_s:
            _LOG.warning("the upstream is busy and gets less at once")
            self._log_at_s = now_s + _LOG_INTERVAL_S
        self._rounds = 0
        self._resize(size)

    def _resize(self, size: int) -> None:
        self._size, self._answers = size, 0
        metrics.UPSTREAM_PLACES.set(size)
        if self._bulk_pause is None:
            self._slots.set_bulk_limit(size)

    def _end_bulk_pause(self) -> None:
        """Start items that have not been tried; during the pause each would be refused too."""
        if self._bulk_pause is not None:
            self._bulk_pause.cancel()
            self._bulk_pause = None
            self._slots.set_bulk_limit(self._size)


def _pause_s(refusal_count: int, stated_s: float, fraction: float) -> float:
    """Return an exponential backoff with jitter, at least the stated Retry-After."""
    doubled_s = min(_PAUSE_S * 2.0 ** min(refusal_count, _DOUBLINGS_MAX), _PAUSE_S_MAX)
    return max(doubled_s * (1 + fraction) / 2, stated_s)


class CircuitBreaker:
    """Opens after `failures_max` consecutive transient failures of items.

    While it is open a failure is the upstream's and charges no item. Any other answer closes it,
    also one to an online call. After `open_s_max` without such an answer, failures are charged to
    items again: their jobs must end.
    """

    def __init__(self, failures_max: int, open_s_max: float, clock: Clock) -> None:
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
