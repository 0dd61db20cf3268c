"""Goal: the time of prompt and output tokens is measured while the engine is full."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.compute import OUTPUT_WEIGHT_PRIOR
from gpu_consumers.flow_control.compute_rates import (
    ENDPOINTS_MAX,
    OUTPUT_WEIGHT_MAX,
    OUTPUT_WEIGHT_MIN,
    ComputeRates,
)

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def measure(
    rates: ComputeRates, prompt_s: float, output_s: float, windows: list[tuple[int, int]]
) -> None:
    for prompt, output in windows:
        rates.add_tokens(CHAT, prompt, output)
        rates.close_window(prompt * prompt_s + output * output_s, was_full=True)


@pytest.mark.parametrize("weight", [0.5, 2.0, 10.0])
def test_the_rates_are_found_from_varied_requests_despite_noise(weight: float) -> None:
    prompt_s = 0.0002
    rates, chance = ComputeRates(), random.Random(7)
    for _ in range(200):
        prompt, output = chance.randrange(100, 4000), chance.randrange(10, 1000)
        busy_s = (prompt + weight * output) * prompt_s * chance.uniform(0.9, 1.1)
        rates.add_tokens(CHAT, prompt, output)
        rates.close_window(busy_s, was_full=True)
    assert rates.output_weight(CHAT) == pytest.approx(weight, rel=0.25)
    (measured,) = rates.measured()
    assert measured.prompt_token_s == pytest.approx(prompt_s, rel=0.25)


def test_equal_requests_keep_the_prior_ratio_and_measure_the_scale() -> None:
    rates = ComputeRates()
    measure(rates, 0.001, 0.001, [(100, 50)] * 50)
    assert rates.output_weight(CHAT) == pytest.approx(OUTPUT_WEIGHT_PRIOR, rel=0.1)
    (measured,) = rates.measured()
    busy_s = 100 * measured.prompt_token_s + 50 * measured.output_token_s
    assert busy_s == pytest.approx(0.15)


def test_a_window_with_free_slots_teaches_nothing() -> None:
    rates = ComputeRates()
    rates.add_tokens(CHAT, 100, 50)
    rates.close_window(5.0, was_full=False)
    assert rates.measured() == []
    rates.close_window(1.0, was_full=True)  # the tokens belonged to the window before
    assert rates.measured() == []


def test_the_first_full_window_teaches_nothing() -> None:
    rates = ComputeRates()
    rates.add_tokens(CHAT, 10_000, 10)  # long outputs have not ended
    rates.close_window(1.0, was_full=True)
    assert rates.measured() == []
    rates.add_tokens(CHAT, 100, 50)
    rates.close_window(1.0, was_full=True)
    assert rates.output_weight(CHAT) == pytest.approx(OUTPUT_WEIGHT_PRIOR, rel=0.1)
    rates.close_window(1.0, was_full=False)
    before = rates.measured()
    rates.add_tokens(CHAT, 10_000, 10)
    rates.close_window(1.0, was_full=True)
    assert rates.measured() == before


def test_endpoints_share_the_time_of_a_window_by_their_costs() -> None:
    rates = ComputeRates()
    for _ in range(20):
        rates.add_tokens(CHAT, 100, 0)
        rates.add_tokens("/v1/embeddings", 300, 0)
        rates.close_window(0.4, was_full=True)
    times = {one.endpoint: one.prompt_token_s for one in rates.measured()}
    assert times == {CHAT: pytest.approx(0.001), "/v1/embeddings": pytest.approx(0.001)}


@given(
    windows=st.lists(
        st.tuples(st.integers(0, 10**7), st.integers(0, 10**7), st.floats(1e-6, 1e4)), max_size=60
    )
)
def test_rates_stay_positive_and_the_ratio_within_its_bounds(
    windows: list[tuple[int, int, float]],
) -> None:
    rates = ComputeRates()
    for prompt, output, busy_s in windows:
        rates.add_tokens(TEXT, prompt, output)
        rates.close_window(busy_s, was_full=True)
        for one in rates.measured():
            assert one.prompt_token_s > 0
            weight = one.output_token_s / one.prompt_token_s
            assert OUTPUT_WEIGHT_MIN * 0.999 <= weight <= OUTPUT_WEIGHT_MAX * 1.001


def test_the_number_of_endpoints_is_bounded() -> None:
    rates = ComputeRates()
    for number in range(2 * ENDPOINTS_MAX):
        rates.add_tokens(f"/v1/{number}", 1, 1)
        rates.close_window(1.0, was_full=True)
    assert len(rates.measured()) == ENDPOINTS_MAX


def test_the_weighted_rate_counts_only_full_windows_after_the_first() -> None:
    rates = ComputeRates()
    rates.add_tokens(CHAT, 1000, 0)
    rates.close_window(1.0, was_full=False)
    rates.add_tokens(CHAT, 1000, 0)
    rates.close_window(1.0, was_full=True)
    assert rates.tokens_per_s == 0.0
    rates.add_tokens(CHAT, 100, 50)
    rates.close_window(0.5, was_full=True)
    assert rates.tokens_per_s == pytest.approx((100 + OUTPUT_WEIGHT_PRIOR * 50) / 0.5)
    before = rates.tokens_per_s
    rates.close_window(1.0, was_full=True)  # without an answer
    assert rates.tokens_per_s == before
