"""Whether the pool is available; both classes of a replica share its upstream."""

import asyncio
import logging
from collections.abc import Sequence

from gpu_consumers import metrics
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher

_LOG = logging.getLogger(__name__)
_BACKOFF_S_MIN = 0.5
_PROBE_ITEMS = 1


class PoolHealth:
    """Withdraws the credit of every class while the pool is unavailable, and probes the pool."""

    def __init__(self, capacities: Sequence[CapacityPublisher], *, backoff_s_max: float) -> None:
        self._capacities, self._backoff_s_max = capacities, backoff_s_max
        self._backoff_s = _BACKOFF_S_MIN
        self._is_available = True
        self._is_closed = False
        self._probe: asyncio.TimerHandle | None = None
        metrics.POOL_AVAILABLE.set(1)

    def mark_unavailable(self) -> None:
        """Withdraw the credit, then probe the pool with one item of each class."""
        if self._is_closed:
            return
        self._is_available = False
        metrics.POOL_AVAILABLE.set(0)
        self._limit_items(0)
        if self._probe is None:
            _LOG.warning("the pool is away", extra={"retry_in_s": self._backoff_s})
            loop = asyncio.get_running_loop()
            self._probe = loop.call_later(self._backoff_s, self._start_probe)
            self._backoff_s = min(self._backoff_s * 2, self._backoff_s_max)

    def mark_available(self) -> None:
        """Restore the credit, unless the answer is to a request from before the outage."""
        if self._is_available or self._is_closed or self._probe is not None:
            return
        self._is_available = True
        metrics.POOL_AVAILABLE.set(1)
        self._backoff_s = _BACKOFF_S_MIN
        self._limit_items(None)

    def close(self) -> None:
        """Withdraw the credit for good: the replica stops."""
        self._is_closed = True
        self._limit_items(0)

    def _start_probe(self) -> None:
        self._probe = None
        if not self._is_closed:
            self._limit_items(_PROBE_ITEMS)

    def _limit_items(self, limit: int | None) -> None:
        for capacity in self._capacities:
            capacity.limit_items(limit)
