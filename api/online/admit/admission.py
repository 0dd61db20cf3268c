"""Admission rules: limits on open calls, and refusal of calls whose wait would exceed their time.

Pure functions of their arguments.
"""

from dataclasses import dataclass
from math import ceil
from typing import Final

from api.http.responses import ApiError, unavailable
from jobs.expansion.windows import PoolCapacity

RETRY_AFTER_S_MAX: Final = 60
"""Clients ignore or mishandle a longer `Retry-After`."""


@dataclass(frozen=True, slots=True)
class OpenCallCounts:
    """Open calls of this process, without the new one."""

    total: int
    of_tenant: int
    of_pool: int


@dataclass(frozen=True, slots=True)
class OpenCallLimits:
    """Limits on open calls."""

    total_max: int
    of_tenant_max: int


def find_refusal(
    counts: OpenCallCounts,
    limits: OpenCallLimits,
    pool: PoolCapacity | None,
    *,
    execution_s: float,
    time_left_s: float,
) -> ApiError | None:
    """Return why a call is refused, or None when it is admitted.

    `pool` is None while the pool's capacity is unknown. `execution_s` is the recent execution time
    of a call in the pool.
    """
    if counts.of_tenant >= limits.of_tenant_max:
        return queue_full(429, "Your organization has too many calls open.", 1.0)
    if counts.total >= limits.total_max:
        return queue_full(503, "Too many calls are open.", 1.0)
    wait_s = predicted_wait_s(counts.of_pool, pool, execution_s)
    if wait_s > time_left_s:
        return queue_full(503, "The call would not be served in time.", wait_s - time_left_s)
    return None


def predicted_wait_s(open_calls: int, pool: PoolCapacity | None, execution_s: float) -> float:
    """Return how long one more call would wait for its execution; 0 while that is unknown.

    Calls beyond the pool's concurrency wait. They are served at the higher of two rates: the
    measured one, which is low when the pool had little to do, and concurrency per execution time.
    """
    if pool is None or execution_s <= 0:
        return 0.0
    items_per_s = max(pool.items_per_s, pool.concurrency / execution_s)
    if items_per_s <= 0:
        return 0.0
    return max(0, open_calls - pool.concurrency) / items_per_s


def queue_full(status: int, message: str, retry_after_s: float) -> ApiError:
    """Return a refusal because of load."""
    return ApiError(
        status,
        message,
        kind="service_unavailable_error" if status == 503 else "rate_limit_exceeded",
        code="queue_full",
        headers={"retry-after": str(retry_after_seconds(retry_after_s))},
    )


def no_capacity() -> ApiError:
    """Return the refusal of a call whose pool has no replica."""
    return unavailable(
        "No replica serves the model at the moment.", retry_after_s=5, code="no_capacity"
    )


def retry_after_seconds(seconds: float) -> int:
    """Return a `Retry-After` of 1 to 60 whole seconds."""
    return min(RETRY_AFTER_S_MAX, max(1, ceil(seconds)))
