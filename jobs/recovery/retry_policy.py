"""Retry policy: exponential backoff with full jitter, and a retry budget for each pool. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

_EXPONENT_MAX: Final = 62  # keeps the power within a float; `backoff_s_max` applies long before


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRules:
    """Number of attempts and delays between them."""

    attempts_max: int = 3  # executions in all
    backoff_s: float = 5.0  # longest wait before the second execution; doubles with each one
    backoff_s_max: float = 300.0


def has_attempts_left(attempt: int, rules: RetryRules) -> bool:
    """Whether another execution may follow the failed execution `attempt`, counted from 1."""
    return attempt < rules.attempts_max


def backoff_s(attempt: int, fraction: float, rules: RetryRules) -> float:
    """Return the delay after the failure of execution `attempt`, in seconds.

    `fraction` is a uniform random number from [0, 1). Delays spread over the full range, so that
    items that failed together are not retried together.
    Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015, "full jitter".
    """
    exponent = min(max(attempt, 1) - 1, _EXPONENT_MAX)
    return fraction * min(rules.backoff_s * 2.0**exponent, rules.backoff_s_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudgetRules:
    """The share of a pool's throughput that retries may use. A spent budget only delays retries."""

    share: float = 0.1  # of the pool's known items per second
    items_per_s_min: float = 10.0  # also while the pool's rate is unknown
    burst_s: float = 10.0  # seconds of its rate that an unused budget accumulates


def refill_budget(
    tokens: float, elapsed_s: float, pool_items_per_s: float, rules: RetryBudgetRules
) -> float:
    """Return the tokens `elapsed_s` after the last withdrawal; a negative time adds none."""
    rate = max(rules.items_per_s_min, rules.share * pool_items_per_s)
    burst = max(1.0, rate * rules.burst_s)
    return min(burst, max(0.0, tokens) + rate * max(0.0, elapsed_s))


def share_budget(
    budget: int, demand: Mapping[UUID, Mapping[UUID, int]], fraction: Callable[[], float]
) -> dict[UUID, int]:
    """Share `budget` evenly among tenants, and each tenant's share among its jobs; return by job.

    `demand` is by tenant and job; no job gets more than its demand. Remainders go to the first in a
    new random order, so none waits for ever; `fraction` returns uniform random numbers from [0, 1).
    """
    tenant_demand = {tenant: sum(job_demand.values()) for tenant, job_demand in demand.items()}
    tenant_shares = _share_evenly(budget, tenant_demand, fraction)
    shares: dict[UUID, int] = {}
    for tenant, job_demand in demand.items():
        shares |= _share_evenly(tenant_shares[tenant], job_demand, fraction)
    return shares


def _share_evenly(
    budget: int, demand: Mapping[UUID, int], fraction: Callable[[], float]
) -> dict[UUID, int]:
    shares = dict.fromkeys(demand, 0)
    unsatisfied = [key for key, count in demand.items() if count > 0]
    unsatisfied.sort(key=lambda _: fraction())
    while budget > 0 and unsatisfied:
        even_share = max(1, budget // len(unsatisfied))
        for key in unsatisfied:
            count = min(even_share, demand[key] - shares[key], budget)
            shares[key] += count
            budget -= count
        unsatisfied = [key for key in unsatisfied if shares[key] < demand[key]]
    return shares
