"""When a failed item is tried again: exponential backoff with full jitter. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

_EXPONENT_MAX: Final = 62  # a float's exponent has room; the cap has cut long before


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRules:
    """How often and how late an item is tried again."""

    attempts_max: int = 3  # executions in all
    backoff_s: float = 5.0  # longest wait before the second execution; doubles with each one
    backoff_s_max: float = 300.0


def has_attempts_left(attempt: int, rules: RetryRules) -> bool:
    """Whether another execution may follow the failed one of this number, counted from 1."""
    return attempt < rules.attempts_max


def backoff_s(attempt: int, fraction: float, rules: RetryRules) -> float:
    """Return how long to wait after the failure of execution `attempt`, in seconds.

    `fraction` is drawn evenly from [0, 1). Waits spread over the whole range, so that items that
    failed together do not come back together.
    Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015, "full jitter".
    """
    exponent = min(max(attempt, 1) - 1, _EXPONENT_MAX)
    return fraction * min(rules.backoff_s * 2.0**exponent, rules.backoff_s_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudgetRules:
    """What share of a pool's work may be retries. A spent budget delays, it never fails."""

    share: float = 0.1  # of the items per second that the pool is known to do
    items_per_s_min: float = 10.0  # also of a pool whose speed is not known
    burst_s: float = 10.0  # what an unused budget may add up to, in seconds of its rate


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """A token bucket at one moment."""

    tokens: float
    burst: float

    @property
    def whole(self) -> int:
        """Retries that may be emitted now."""
        return int(self.tokens)


def refill_budget(
    tokens: float, elapsed_s: float, pool_items_per_s: float, rules: RetryBudgetRules
) -> RetryBudget:
    """Return the bucket after `elapsed_s` without withdrawal. A clock that went back adds none."""
    rate = max(rules.items_per_s_min, rules.share * pool_items_per_s)
    burst = max(1.0, rate * rules.burst_s)
    return RetryBudget(min(burst, max(0.0, tokens) + rate * max(0.0, elapsed_s)), burst)


def share_budget(
    budget: int, wanted: Mapping[UUID, Mapping[UUID, int]], fraction: Callable[[], float]
) -> dict[UUID, int]:
    """Share `budget` among tenants evenly, and what each has among its jobs; return it by job.

    `wanted` is by tenant and job; none gets more than it wants. What does not divide goes to those
    who come first in an order drawn anew, so none waits for ever; `fraction` is drawn evenly from
    [0, 1).
    """
    of_tenants = _evenly(
        budget, {tenant: sum(its.values()) for tenant, its in wanted.items()}, fraction
    )
    given: dict[UUID, int] = {}
    for tenant, its in wanted.items():
        given |= _evenly(of_tenants[tenant], its, fraction)
    return given


def _evenly(
    budget: int, wanted: Mapping[UUID, int], fraction: Callable[[], float]
) -> dict[UUID, int]:
    given = dict.fromkeys(wanted, 0)
    hungry = [one for one, count in wanted.items() if count > 0]
    hungry.sort(key=lambda _: fraction())
    while budget > 0 and hungry:
        each = max(1, budget // len(hungry))
        for one in hungry:
            count = min(each, wanted[one] - given[one], budget)
            given[one] += count
            budget -= count
        hungry = [one for one in hungry if given[one] < wanted[one]]
    return given
