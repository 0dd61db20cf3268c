"""Goal: backoff is bounded and spread; budgets bound retries and are shared fairly."""

import random
from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.recovery.retry_policy import (
    RetryBudgetRules,
    RetryRules,
    backoff_s,
    has_attempts_left,
    refill_budget,
    share_budget,
)

fractions = st.floats(0, 1, exclude_max=True)
seconds = st.floats(0, 1e6)
retry_rules = st.builds(
    RetryRules,
    attempts_max=st.integers(1, 100),
    backoff_s=st.floats(0, 3600),
    backoff_s_max=st.floats(0, 86_400),
)
budget_rules = st.builds(
    RetryBudgetRules,
    share=st.floats(0, 1),
    items_per_s_min=st.floats(0.001, 1e6),
    burst_s=st.floats(0.1, 100),
)
wants = st.lists(st.lists(st.integers(0, 1000), max_size=5), max_size=10)
"""What each job wants, by tenant."""


def by_id(counts: list[list[int]]) -> dict[UUID, dict[UUID, int]]:
    return {
        UUID(int=tenant): {UUID(int=1000 * tenant + job): n for job, n in enumerate(its)}
        for tenant, its in enumerate(counts)
    }


@given(st.integers(-10, 10_000), fractions, retry_rules)
def test_backoff_grows_up_to_its_maximum(attempt: int, fraction: float, rules: RetryRules) -> None:
    wait_s = backoff_s(attempt, fraction, rules)
    assert 0 <= wait_s <= rules.backoff_s_max
    assert wait_s <= backoff_s(attempt + 1, fraction, rules)


@given(st.integers(1, 20), retry_rules)
def test_backoff_uses_the_full_range(attempt: int, rules: RetryRules) -> None:
    longest_s = min(rules.backoff_s * 2 ** (attempt - 1), rules.backoff_s_max)
    assert backoff_s(attempt, 0.0, rules) == 0
    assert backoff_s(attempt, 0.5, rules) == longest_s / 2


@given(retry_rules)
def test_an_item_runs_as_often_as_the_rules_allow(rules: RetryRules) -> None:
    attempt = 1
    while has_attempts_left(attempt, rules):
        attempt += 1
    assert attempt == rules.attempts_max


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(0, 1e6), budget_rules)
def test_a_budget_is_limited_by_its_burst_and_never_shrinks(
    tokens: float, elapsed_s: float, rate: float, rules: RetryBudgetRules
) -> None:
    left = refill_budget(tokens, elapsed_s, rate, rules)
    burst = rules.burst_s * max(rules.items_per_s_min, rules.share * rate)
    assert 0 <= left <= max(1.0, burst)
    assert left <= refill_budget(tokens, elapsed_s + 1, rate, rules)
    assert refill_budget(0.0, 1e9, rate, rules) >= 1  # no retry waits for ever


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 1000)), max_size=50), budget_rules)
def test_withdrawals_never_exceed_burst_and_rate(
    withdrawals: list[tuple[float, int]], rules: RetryBudgetRules
) -> None:
    tokens, spent, passed_s = 0.0, 0, 0.0
    for elapsed_s, demand in withdrawals:
        passed_s += elapsed_s
        tokens = refill_budget(tokens, elapsed_s, 0.0, rules)
        count = min(demand, int(tokens))
        spent += count
        tokens -= count
    assert spent <= rules.items_per_s_min * passed_s * (1 + 1e-9) + 1e-6


@given(st.integers(-5, 5000), wants, st.randoms(use_true_random=False))
def test_a_budget_is_shared_evenly_and_completely(
    budget: int, counts: list[list[int]], draw: random.Random
) -> None:
    demand = by_id(counts)
    shares = share_budget(budget, demand, draw.random)
    assert shares.keys() == {job for its in demand.values() for job in its}
    assert sum(shares.values()) == max(0, min(budget, sum(map(sum, counts))))
    assert_even(
        {tenant: sum(shares[job] for job in its) for tenant, its in demand.items()},
        {tenant: sum(its.values()) for tenant, its in demand.items()},
    )
    for its in demand.values():
        assert_even({job: shares[job] for job in its}, its)


def assert_even(shares: dict[UUID, int], demand: dict[UUID, int]) -> None:
    most = max(shares.values(), default=0)
    for one, count in demand.items():
        assert 0 <= shares[one] <= count
        assert shares[one] in {count, most, most - 1}


@pytest.mark.parametrize("budget", [1, 2, 3, 5])
def test_repeated_shares_are_fair_to_tenants_and_their_jobs(budget: int) -> None:
    demand = by_id([[500] * 6, [500], [500, 500]])
    draw = random.Random(budget)
    got: Counter[UUID] = Counter()
    for _ in range(1200):
        got.update(share_budget(budget, demand, draw.random))
    fair = 1200 * budget / 3
    for its in demand.values():
        assert sum(got[job] for job in its) == pytest.approx(fair, rel=0.2)
        assert all(got[job] == pytest.approx(fair / len(its), rel=0.4) for job in its)
