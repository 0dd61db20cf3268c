"""Whether a call may be sent: bounds on what is open, and no queue without hope. Pure rules."""

from dataclasses import dataclass
from math import ceil
from typing import Final

from api.http.responses import ApiError, unavailable
from jobs.expansion.windows import PoolCapacity

RETRY_AFTER_S_MAX: Final = 60
"""Clients ignore or mistreat longer ones."""


@dataclass(frozen=True, slots=True)
class OpenCallCounts:
    """What is open in this process now, the new call not counted."""

    calls: int
    of_tenant: int
    of_pool: int


@dataclass(frozen=True, slots=True)
class OpenCallLimits:
    """How much may be open at once."""

    calls_max: int
    of_tenant_max: int


def find_refusal(
    load: OpenCallCounts,
    bounds: OpenCallLimits,
    pool: PoolCapacity | None,
    *,
    execution_s: float,
    time_left_s: float,
) -> ApiError | None:
    """Return why a call is not taken, or None.

    `pool` is None while nothing can be said of it, `execution_s` is what a call of it took lately.
    """
    if load.of_tenant >= bounds.of_tenant_max:
        return queue_full(429, "Your organization has too many calls open.", 1.0)
    if load.calls >= bounds.calls_max:
        return queue_full(503, "Too many calls are open.", 1.0)
    wait_s = predicted_wait_s(load.of_pool, pool, execution_s)
    if wait_s > time_left_s:
        return queue_full(503, "The call would not be served in time.", wait_s - time_left_s)
    return None


def predicted_wait_s(open_calls: int, pool: PoolCapacity | None, execution_s: float) -> float:
    """Return how long one more call would wait to run; 0 while that cannot be told.

    Calls beyond the pool's concurrency wait, at the better of two rates: the measured one, which
    is low when there was little to do, and what all places together make of `execution_s`.
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
    """Return whole seconds that clients respect."""
    return min(RETRY_AFTER_S_MAX, max(1, ceil(seconds)))
