"""Goal: the replicas that a pool needs are a number, grow with work, and stale data lowers nothing.

No traffic needs 0 and never NaN, which is a known fault of averages over no requests in HPA.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from autoscaler.policy.replica_need import has_work, replica_need, replica_rate
from autoscaler.policy.signals import (
    BULK_BUCKETS_MAX,
    FAST_S,
    RECENT_S,
    SLOW_S,
    ArrivalRates,
    InvalidSignalError,
    PoolSignals,
    ReplicaState,
    advance_arrivals,
    check_signals,
)
from tests.support.scaling import (
    COLD_START_S,
    NOW_S,
    RATE,
    arrivals,
    bucket,
    replica,
    rules_of,
    signals_of,
    warm,
)

tokens = st.floats(0, 1e18)
some_signals = st.builds(
    lambda per_s, backlog, bulk, left_s, count: signals_of(
        per_s, warm(count), online_backlog_tokens=backlog, bulk=(bucket(bulk, left_s),)
    ),
    tokens,
    tokens,
    tokens,
    st.floats(-1e6, 1e7),
    st.integers(0, 5),
)


@given(some_signals, st.floats(0, 1e300))
def test_the_need_is_finite_whatever_replicas_report(signals: PoolSignals, rate: float) -> None:
    lying = (*signals.replicas, replica(99, tokens_per_s=rate))
    need = replica_need(rules_of(burst_factor=3.0), replace(signals, replicas=lying), NOW_S, None)

    assert 0 <= need.exact < math.inf
    assert need.replicas >= need.exact - 1e-3
    assert RATE / 10 <= need.replica_tokens_per_s <= RATE * 10


@pytest.mark.parametrize("count", [0, 1, 7])
def test_no_traffic_needs_nothing(count: int) -> None:
    need = replica_need(rules_of(), signals_of(0.0, warm(count)), NOW_S, None)

    assert need.exact == 0
    assert need.replicas == 0


@given(some_signals, tokens, tokens, tokens)
def test_more_work_needs_no_fewer(
    signals: PoolSignals, per_s: float, backlog: float, bulk: float
) -> None:
    more = replace(
        signals,
        arrivals=arrivals(max(per_s, signals.arrivals.fast_per_s)),
        online_backlog_tokens=max(backlog, signals.online_backlog_tokens),
        bulk=(*signals.bulk, bucket(bulk, 3600)),
    )
    before = replica_need(rules_of(), signals, NOW_S, None)
    after = replica_need(rules_of(), more, NOW_S, None)

    assert after.exact >= before.exact
    assert after.replicas >= before.replicas


@given(some_signals, some_signals, st.sampled_from(["online", "bulk", "replicas"]))
def test_a_stale_input_lowers_no_term_that_depends_on_it(
    before: PoolSignals, after: PoolSignals, name: str
) -> None:
    known = replica_need(rules_of(), before, NOW_S, None)
    need = replica_need(rules_of(), replace(after, age_s={name: 3.1}), NOW_S, known)
    affected = {
        "online": ("online", "waiting", "burst"),
        "bulk": ("bulk",),
        "replicas": ("online", "waiting", "bulk", "burst"),
    }[name]

    assert need.stale == (name,)
    assert all(getattr(need, term) >= getattr(known, term) for term in affected)


def test_terms_are_those_of_the_formula() -> None:
    signals = PoolSignals(
        arrivals=arrivals(2400, variance_per_s=1e6),
        online_backlog_tokens=5000,
        bulk=(bucket(360_000, 3600 + COLD_START_S), bucket(60_000, 0)),
        replicas=warm(2),
    )
    need = replica_need(rules_of(burst_factor=2.0), signals, NOW_S, None)

    assert need.online == pytest.approx(2400 / (0.8 * RATE))
    assert need.waiting == pytest.approx(5000 / (RATE * 10))
    assert need.bulk == pytest.approx(360_000 / (RATE * 3600) + 60_000 / (RATE * 60))
    assert need.burst == pytest.approx(2 * math.sqrt(1e6 * 10) / (RATE * 20))
    assert need.replicas == math.ceil(3 + 0.5 + 0.1 + 1 + need.burst)


@given(st.floats(1, 300), st.floats(1, 300), st.floats(0, 1e9), st.floats(0.01, 1))
def test_the_burst_term_serves_what_comes_in_each_window_up_to_a_start(
    start_s: float, drain_s: float, variance: float, part: float
) -> None:
    rules = rules_of(burst_factor=1.0, online_drain_s=drain_s)
    signals = signals_of(1.0, cold_start_s={"l4": start_s})
    signals = replace(signals, arrivals=replace(signals.arrivals, variance_per_s=variance))
    burst = replica_need(rules, signals, NOW_S, None).burst
    window_s = part * start_s

    assert burst * RATE * (window_s + drain_s) >= math.sqrt(variance * window_s) * (1 - 1e-9)


def test_a_rise_counts_beyond_its_noise_and_noise_does_not() -> None:
    risen = replace(arrivals(100.0, variance_per_s=1600.0), recent_per_s=500.0)
    within = replace(risen, recent_per_s=119.0)

    def rate(rates: ArrivalRates) -> float:
        need = replica_need(rules_of(), replace(signals_of(), arrivals=rates), NOW_S, None)
        return need.inputs.arrivals_per_s

    assert rate(risen) == pytest.approx(500 - 2 * 10)
    assert rate(within) == 100


def test_a_steady_rise_is_no_variance() -> None:
    rates, per_s = arrivals(100.0), 100.0
    rates = replace(rates, recent_per_s=100.0)
    for second in range(60):
        per_s += 20
        rates = advance_arrivals(rates, per_s, NOW_S + second + 1)

    assert rates.variance_per_s < (20 * RECENT_S) ** 2
    assert rates.recent_per_s > rates.fast_per_s > rates.slow_per_s


def test_expected_output_is_corrected_by_what_was_measured_within_bounds() -> None:
    signals = signals_of(bulk=(bucket(120_000, 0),), output_weight=2.0)

    def bulk(correction: float) -> float:
        corrected = replace(signals, correction={"/v1/chat/completions": correction})
        return replica_need(rules_of(), corrected, NOW_S, None).bulk

    assert bulk(1.0) == pytest.approx((60_000 + 2 * 60_000) / (RATE * 60))
    assert bulk(0.5) == pytest.approx((60_000 + 60_000) / (RATE * 60))
    assert bulk(1e12) == bulk(10.0)
    assert bulk(0.0) == bulk(0.1)


def test_a_replica_that_starts_has_the_rate_of_its_curve() -> None:
    starting = replica(1, ReplicaState.STARTING, tokens_per_s=1.0)
    asleep = replica(2, ReplicaState.ASLEEP, tokens_per_s=9000.0)
    measured = replica(3, tokens_per_s=2000.0)

    rate = replica_rate(rules_of(), signals_of(replicas=(starting, asleep, measured)))

    assert rate == (RATE + 2000) / 2


def test_arrivals_end_to_count_after_the_idle_time() -> None:
    rules = rules_of(idle_s=600.0)
    signals = signals_of(1e9)

    assert has_work(rules, signals, NOW_S + 599)
    assert not has_work(rules, signals, NOW_S + 600)
    assert replica_need(rules, signals, NOW_S + 600, None).exact == 0


@given(
    st.floats(0, 1e12),
    st.lists(st.floats(0.01, 100), min_size=1, max_size=40),
)
def test_means_of_a_constant_rate_stay_at_or_below_it_and_grow(
    per_s: float, intervals: list[float]
) -> None:
    rates = ArrivalRates(at_s=NOW_S)
    for interval_s in intervals:
        advanced = advance_arrivals(rates, per_s * interval_s, rates.at_s + interval_s)
        for name in ("recent_per_s", "fast_per_s", "slow_per_s"):
            assert getattr(rates, name) * (1 - 1e-4) <= getattr(advanced, name)
            assert getattr(advanced, name) <= per_s * (1 + 1e-4)
        rates = advanced


def test_means_have_their_time_constants() -> None:
    rates = arrivals(1000.0)
    fast = advance_arrivals(rates, 0.0, NOW_S + FAST_S)
    slow = advance_arrivals(rates, 0.0, NOW_S + SLOW_S)

    assert fast.fast_per_s == pytest.approx(1000 / math.e)
    assert slow.slow_per_s == pytest.approx(1000 / math.e)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(-10, 10)), max_size=30))
def test_a_clock_that_goes_back_loses_no_tokens_and_makes_no_nan(
    steps: list[tuple[float, float]],
) -> None:
    rates = ArrivalRates(at_s=NOW_S)
    for arrived, delta_s in steps:
        before = rates
        rates = advance_arrivals(rates, arrived, rates.at_s + delta_s)
        assert rates.at_s >= before.at_s
        if rates.at_s == before.at_s:
            assert rates.counted_tokens == before.counted_tokens + arrived
        assert all(
            0 <= value < math.inf
            for value in (rates.fast_per_s, rates.slow_per_s, rates.variance_per_s)
        )


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e19])
def test_a_value_that_is_no_amount_is_refused_by_name(value: float) -> None:
    with pytest.raises(InvalidSignalError, match="online backlog"):
        check_signals(signals_of(online_backlog_tokens=value))
    with pytest.raises(InvalidSignalError, match="replica's rate"):
        check_signals(signals_of(replicas=(replica(1, tokens_per_s=value),)))
    with pytest.raises(InvalidSignalError, match="online tokens"):
        advance_arrivals(ArrivalRates(at_s=NOW_S), value, NOW_S + 1)


def test_more_buckets_than_the_limit_are_refused() -> None:
    buckets = (bucket(1, 60),) * (BULK_BUCKETS_MAX + 1)

    check_signals(signals_of(bulk=buckets[1:]))
    with pytest.raises(InvalidSignalError, match="buckets"):
        check_signals(signals_of(bulk=buckets))


def test_the_worked_example_of_the_documentation_needs_seven() -> None:
    signals = PoolSignals(
        arrivals=arrivals(2400, variance_per_s=1e7),
        online_backlog_tokens=8000,
        bulk=(bucket(7_200_000, 3690),),
        replicas=warm(2),
    )
    need = replica_need(rules_of(burst_factor=1.0), signals, NOW_S, None)

    assert need.exact == pytest.approx(6.3)
    assert need.replicas == 7
