"""Calls for pools without replicas: they wait for a pool that is being started, or are refused.

A call waits on the log if it may wait for longer than the predicted start times `MARGIN`, up to
`MILLRACE_ONLINE_WAKING_CALLS_MAX` calls of each pool and process. A tenant may have as many as are
still free, so one alone has half of them, and another one always finds places. Source: Choudhury
and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM
Transactions on Networking 6(2), 1998, as in the batcher's buffer.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Final
from uuid import UUID

from api.http.errors import ApiError
from api.online import metrics
from api.online.admit.admission import PoolStates
from api.online.admit.pool_wakes import PoolWakes
from api.online.call_errors import NO_CAPACITY, no_capacity, retry_after_seconds
from api.online.calls import PlannedCall
from api.online.settings import OnlineSettings

MARGIN: Final = 1.25
"""Factor of the predicted start: half of its error, and the time to run the call."""


@dataclass(slots=True)
class _Waiting:
    """The calls that wait for one pool since it had no replica."""

    total: int = 0
    by_tenant: Counter[UUID] = field(default_factory=Counter)
    durable: list[tuple[float, UUID]] = field(default_factory=list)  # heap: until when, of whom

    def add(self, tenant_id: UUID, count: int) -> None:
        self.total += count
        self.by_tenant[tenant_id] += count
        if not self.by_tenant[tenant_id]:
            del self.by_tenant[tenant_id]

    def end_due(self, now_s: float) -> None:
        """End the wait of durable calls whose deadline has passed."""
        while self.durable and self.durable[0][0] <= now_s:
            self.add(heapq.heappop(self.durable)[1], -1)


class Place:
    """The place of one call among those that wait for its pool."""

    def __init__(self, waiting: _Waiting, tenant_id: UUID) -> None:
        """Take a place. `release` or `keep_until` ends the taker's duty."""
        self._waiting, self._tenant_id = waiting, tenant_id
        self._is_held = True
        waiting.add(tenant_id, 1)

    def release(self) -> None:
        """Free the place, unless that was done or it is kept."""
        if self._is_held:
            self._is_held = False
            self._waiting.add(self._tenant_id, -1)

    def keep_until(self, deadline_s: float) -> None:
        """Keep the place of a call that outlives its connection, until the pool serves or then."""
        if self._is_held:
            self._is_held = False
            heapq.heappush(self._waiting.durable, (deadline_s, self._tenant_id))


class SleepingPools:
    """Admits the calls of one process for pools without replicas. Used on the event loop."""

    def __init__(
        self,
        settings: OnlineSettings,
        pools: PoolStates,
        wakes: PoolWakes,
        note_call: Callable[[str], None],
    ) -> None:
        """`note_call` tells the autoscaler of a call for a pool."""
        self._waiting_max = settings.waking_calls_max
        self._pools, self._wakes, self._note_call = pools, wakes, note_call
        self._waiting: dict[str, _Waiting] = {}

    def is_asleep(self, pool: str, *, now_s: float) -> bool:
        """Whether no replica of the pool accepts calls, as far as the topic was read."""
        return self._pools.find(pool) is None and self._pools.is_warm(now_s=now_s)

    def reserve(self, call: PlannedCall, *, now_s: float) -> Place:
        """Return the place of a call that may wait for its pool to start, else raise ApiError.

        503 `no_capacity` with the predicted start, if there is one; 429 or 503 `queue_full` while
        too many calls wait for it. The place counts at once: a call may take long to commit.
        """
        pool, tenant_id = call.route.pool, call.principal.tenant_id
        wait_s = self._wakes.predicted_wait_s(pool) if self._pools.find(pool) is None else None
        if wait_s is None:
            raise no_capacity()
        limit_s = call.queue_timeout_s or call.timeout_s
        if call.left_s(limit_s, now_s=now_s) <= wait_s * MARGIN:
            raise model_starting(wait_s)
        waiting = self._waiting.setdefault(pool, _Waiting())
        waiting.end_due(now_s)
        free = self._waiting_max - waiting.total
        if free <= 0:
            message = "Too many calls wait for the model, which is being loaded."
            raise _waits_are_full(503, message, wait_s)
        if waiting.by_tenant[tenant_id] >= free:
            message = "Your organization has too many calls that wait for the model to be loaded."
            raise _waits_are_full(429, message, wait_s)
        return Place(waiting, tenant_id)

    def note(self, call: PlannedCall, *, now_s: float) -> None:
        """Tell the autoscaler of a call, sent or refused, whose pool has no replica."""
        if self.is_asleep(call.route.pool, now_s=now_s):
            self._note_call(call.route.pool)

    def admit(self, call: PlannedCall, place: Place, *, now_s: float) -> None:
        """Tell the autoscaler of a call that is sent and waits.

        A durable call waits on when its client has left: its place is kept.
        """
        self._note_call(call.route.pool)
        metrics.WAKING_CALLS.labels("waits").inc()
        if call.is_durable:
            place.keep_until(now_s + call.left_s(call.timeout_s, now_s=now_s))

    def forget_woken(self, *, now_s: float) -> None:
        """Forget the calls of pools that serve again, and durable ones past their deadline."""
        for pool, waiting in list(self._waiting.items()):
            waiting.end_due(now_s)
            if not waiting.total or self._pools.find(pool) is not None:
                del self._waiting[pool]


def model_starting(wait_s: float) -> ApiError:
    """Return the refusal of a call that may not wait for its pool to start."""
    metrics.WAKING_CALLS.labels("refused").inc()
    seconds = ceil(wait_s)
    unit = "second" if seconds == 1 else "seconds"
    message = f"The model is being loaded; try again in about {seconds} {unit}."
    return _refusal(503, message, NO_CAPACITY, wait_s)


def _waits_are_full(status: int, message: str, wait_s: float) -> ApiError:
    metrics.WAKING_CALLS.labels("full").inc()
    return _refusal(status, message, "queue_full", wait_s)


def _refusal(status: int, message: str, code: str, wait_s: float) -> ApiError:
    return ApiError(
        status,
        message,
        kind="service_unavailable_error" if status == 503 else "rate_limit_exceeded",
        code=code,
        headers={"retry-after": str(retry_after_seconds(wait_s))},
    )
