"""Goal: the emulation of KEDA and its HPA decides as their documentation says."""

from collections.abc import Callable

import pytest

from benchmarks.scaling.keda_emulation import KedaSettings, KedaState, next_state
from benchmarks.scaling.keda_tuning import best_settings, candidates, simulate
from benchmarks.scaling.live_run import flip_count
from benchmarks.scaling.trace import scaled_trace


def settings(**changes: float) -> KedaSettings:
    given = {"replicas_max": 12, "partitions": 12, **changes}
    return KedaSettings(thresholds=(10.0,), **given)  # type: ignore[arg-type]


def run(
    keda: KedaSettings, lag_at: Callable[[float], float], seconds: int, state: KedaState
) -> list[int]:
    """Return the replicas of each second."""
    counts = []
    for now_s in range(seconds):
        state = next_state(keda, state, (lag_at(now_s),), float(now_s))
        counts.append(state.replicas)
    return counts


def test_lag_wakes_a_pool_at_the_next_poll_and_the_hpa_raises_it() -> None:
    counts = run(settings(), lambda now_s: 60.0 if now_s >= 5 else 0.0, 62, KedaState())
    assert counts[29] == 0
    assert counts[30] >= 1  # the poll after 30 s
    assert counts[31] == 5  # at most four more in 15 s, of the six that are wanted
    assert counts[60] == 6


def test_scaling_up_doubles_where_that_is_more_than_four() -> None:
    counts = run(settings(polling_s=1), lambda _: 1_000.0, 40, KedaState(replicas=6))
    assert counts[0] == 12
    partitions = settings(polling_s=1, partitions=3)
    assert run(partitions, lambda _: 1_000.0, 40, KedaState())[-1] == 3


@pytest.mark.parametrize(("lag", "replicas"), [(43.0, 4), (36.0, 4), (45.0, 5), (33.0, 4)])
def test_a_ratio_within_the_tolerance_changes_nothing(lag: float, replicas: int) -> None:
    assert run(settings(polling_s=1), lambda _: lag, 1, KedaState(replicas=4)) == [replicas]


def test_scaling_down_waits_for_the_window() -> None:
    keda = settings(polling_s=1, down_window_s=60)
    counts = run(keda, lambda now_s: 80.0 if now_s < 30 else 10.0, 200, KedaState(replicas=8))
    assert counts[:75] == [8] * 75  # the sync at 15 s was the last with the high lag
    assert counts[75] == 1


def test_a_pool_goes_to_zero_after_the_cooldown_only() -> None:
    keda = settings(polling_s=1, cooldown_s=50)
    counts = run(keda, lambda now_s: 10.0 if now_s < 10 else 0.0, 100, KedaState(replicas=1))
    assert (counts[58], counts[59]) == (1, 0)


def test_the_highest_of_several_triggers_counts() -> None:
    keda = KedaSettings(thresholds=(10.0, 100.0), replicas_max=12, partitions=12)
    assert next_state(keda, KedaState(replicas=2), (30.0, 500.0), 0.0).replicas == 5
    with pytest.raises(ValueError, match="one lag"):
        next_state(keda, KedaState(), (1.0,), 0.0)


def test_the_best_setting_keeps_the_deadline_and_costs_least_of_those_with_its_share() -> None:
    trace, grid = scaled_trace(300), candidates(1, 12, 12)[::7]
    best = best_settings(trace, grid, start_s=25, slo_s=2)
    others = [simulate(trace, one, start_s=25, slo_s=2) for one in grid]
    assert best.is_in_time
    assert not [
        one
        for one in others
        if one.is_in_time and one.share >= best.share and one.replica_s < best.replica_s
    ]
    assert best.share >= max(one.share for one in others if one.is_in_time) - 0.01


def test_the_trace_has_the_same_calls_each_time_and_shrinks_with_its_length() -> None:
    trace = scaled_trace(600)
    times = trace.call_times()
    assert times == scaled_trace(600).call_times()
    expected = sum(trace.rate_at(second + 0.5) for second in range(600))
    assert len(times) == pytest.approx(expected, rel=0.05)
    assert times == sorted(times)
    assert scaled_trace(120).job_items == trace.job_items // 5
    assert trace.rate_at(0) == trace.rate_at(599) == 0


def test_turns_of_a_series_are_counted() -> None:
    assert flip_count([0, 1, 1, 4, 4, 2, 1, 0]) == 1
    assert flip_count([1, 2, 1, 2]) == 2
    assert flip_count([3, 3]) == flip_count([]) == 0
