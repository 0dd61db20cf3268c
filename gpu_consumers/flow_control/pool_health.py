"""Whether the pool answers: both classes of a replica meet the same upstream."""

import asyncio
import logging
from collections.abc import Sequence

from gpu_consumers import metrics
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher

_LOG = logging.getLogger(__name__)
_BACKOFF_S_MIN = 0.5
_PROBE_ITEMS = 1


class PoolHealth:
    """Closes the credit of every class while the pool is away, and tries it with single items."""

    def __init__(self, capacities: Sequence[CapacityPublisher], *, backoff_s_max: float) -> None:
        """The pool is taken to be there."""
        self._capacities, self._backoff_s_max = capacities, backoff_s_max
        self._backoff_s = _BACKOFF_S_MIN
        self._is_there = True
        self._is_leaving = False
        self._retry: asyncio.TimerHandle | None = None
        metrics.POOL_AVAILABLE.set(1)

    def unavailable(self) -> None:
        """Take nothing for a while, then try again with one item of each class."""
        if self._is_leaving:
            return
        self._is_there = False
        metrics.POOL_AVAILABLE.set(0)
        self._restrict(0)
        if self._retry is None:
            _LOG.warning("the pool is away", extra={"retry_in_s": self._backoff_s})
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(self._backoff_s, self._try_again)
            self._backoff_s = min(self._backoff_s * 2, self._backoff_s_max)

    def answered(self) -> None:
        """The pool answered, unless what it answered was asked before it went away."""
        if self._is_there or self._is_leaving or self._retry is not None:
            return
        self._is_there = True
        metrics.POOL_AVAILABLE.set(1)
        self._backoff_s = _BACKOFF_S_MIN
        self._restrict(None)

    def leave(self) -> None:
        """Take nothing any more: nothing lifts this."""
        self._is_leaving = True
        self._restrict(0)

    def _try_again(self) -> None:
        self._retry = None
        if not self._is_leaving:
            self._restrict(_PROBE_ITEMS)

    def _restrict(self, limit: int | None) -> None:
        for capacity in self._capacities:
            capacity.restrict(limit)
