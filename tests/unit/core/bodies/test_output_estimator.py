"""Goal: the expected output follows the results of a tenant, and starts from what is known."""

import pytest

from core.bodies.output_estimator import OUTPUT_TOKENS_PRIOR, OutputEstimator
from core.bodies.token_estimates import RequestedTokens
from core.ids import new_uuid

CHAT = "/v1/chat/completions"
ONE, OTHER = new_uuid(), new_uuid()
OPEN = RequestedTokens(prompt=10, sequences=1)


def learned(*outputs: int, requested: RequestedTokens = OPEN) -> OutputEstimator:
    estimator = OutputEstimator()
    for tokens in outputs:
        estimator.add_result(ONE, "m", CHAT, requested, tokens)
    return estimator


def test_without_results_the_prior_counts() -> None:
    assert OutputEstimator().expected(ONE, "m", CHAT) == OUTPUT_TOKENS_PRIOR


def test_the_mean_converges_from_the_prior_and_follows_a_change() -> None:
    assert learned(100).expected(ONE, "m", CHAT) == pytest.approx((OUTPUT_TOKENS_PRIOR + 100) / 2)
    long = learned(*[1_000] * 100)
    assert long.expected(ONE, "m", CHAT) == pytest.approx(1_000, rel=0.02)
    for _ in range(100):
        long.add_result(ONE, "m", CHAT, OPEN, 10)
    assert long.expected(ONE, "m", CHAT) < 20


def test_tenants_models_and_endpoints_are_apart() -> None:
    estimator = learned(*[1_000] * 100)
    for _ in range(100):
        estimator.add_result(OTHER, "m", CHAT, OPEN, 10)
    assert estimator.expected(ONE, "m", CHAT) > 900
    assert estimator.expected(OTHER, "m", CHAT) < 20
    assert estimator.expected(ONE, "n", CHAT) == OUTPUT_TOKENS_PRIOR
    assert estimator.expected(ONE, "m", "/v1/completions") == OUTPUT_TOKENS_PRIOR


def test_a_new_tenant_gets_the_mean_of_all() -> None:
    assert learned(*[1_000] * 100).expected(OTHER, "m", CHAT) == pytest.approx(1_000, rel=0.02)


def test_the_output_is_learned_for_each_sequence() -> None:
    four = RequestedTokens(prompt=10, sequences=4)
    assert learned(*[400] * 100, requested=four).expected(ONE, "m", CHAT) < 110


def test_an_output_that_its_limit_cut_off_only_raises_the_mean() -> None:
    short = RequestedTokens(prompt=10, sequences=1, limit=5)
    assert learned(*[5] * 100, requested=short).expected(ONE, "m", CHAT) == OUTPUT_TOKENS_PRIOR
    assert learned(*[3] * 100, requested=short).expected(ONE, "m", CHAT) < 10
    long = RequestedTokens(prompt=10, sequences=1, limit=2_000)
    assert learned(*[2_000] * 100, requested=long).expected(ONE, "m", CHAT) > 1_900


def test_an_endpoint_without_output_teaches_nothing() -> None:
    estimator = learned(0, requested=RequestedTokens(prompt=10))
    assert estimator.recent(9) == []


def test_the_newest_means_come_first() -> None:
    estimator = learned(100)
    estimator.add_result(OTHER, "m", CHAT, OPEN, 100)
    assert [key[0] for key, _ in estimator.recent(2)] == [OTHER, None]
