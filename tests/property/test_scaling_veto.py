"""Goal: additions stop only with evidence that more replicas do not raise the pool's rate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from autoscaler.policy.capacity_veto import (
    FREEZE_MIN_S,
    GAIN_MIN,
    AdditionTrial,
    Veto,
    assess_trial,
    open_trial,
)
from autoscaler.policy.signals import PoolSignals
from tests.support.scaling import COLD_START_S, NOW_S, signals_of, warm

READY_S = NOW_S + 2 * COLD_START_S
OPEN = Veto(trial=AdditionTrial(at_s=NOW_S, warm=2, tokens_per_s=1000.0))


def pool(count: int, rate: float, backlog: float = 1.0, age_s: float = 0.0) -> PoolSignals:
    return signals_of(
        0.0,
        warm(count),
        online_backlog_tokens=backlog,
        rate_tokens_per_s=rate,
        age_s={"replicas": age_s},
    )


def test_additions_stop_when_more_replicas_did_not_raise_the_rate() -> None:
    veto = assess_trial(OPEN, pool(4, 1100.0), READY_S, COLD_START_S)

    assert veto.trial is None
    assert veto.is_active(READY_S + FREEZE_MIN_S - 1)
    assert not veto.is_active(READY_S + FREEZE_MIN_S)


@given(st.integers(3, 100), st.floats(0, 1e6))
def test_the_veto_is_exactly_a_gain_below_the_part(count: int, rate: float) -> None:
    veto = assess_trial(OPEN, pool(count, rate), READY_S, COLD_START_S)

    expected = 1000.0 * (count / 2 - 1)
    assert veto.is_active(READY_S) == (rate - 1000.0 < GAIN_MIN * expected)


@pytest.mark.parametrize(
    ("signals", "now_s", "keeps"),
    [
        (pool(4, 1000.0), READY_S - 1, True),  # too early
        (pool(2, 1000.0), READY_S, True),  # what was added is not warm
        (pool(2, 1000.0), READY_S + 2 * COLD_START_S, False),  # and never became so
        (pool(4, 1000.0, backlog=0.0), READY_S, False),  # nothing waits
        (pool(4, 1000.0, age_s=4.0), READY_S, True),  # stale
    ],
)
def test_without_evidence_nothing_is_vetoed(
    signals: PoolSignals, now_s: float, keeps: bool
) -> None:
    veto = assess_trial(OPEN, signals, now_s, COLD_START_S)

    assert not veto.is_active(now_s)
    assert (veto.trial is not None) == keeps


@pytest.mark.parametrize(
    "signals",
    [pool(0, 10.0), pool(2, 0.0), pool(2, 10.0, backlog=0.0), pool(2, 10.0, age_s=4.0)],
)
def test_no_trial_opens_when_the_rate_cannot_be_compared(signals: PoolSignals) -> None:
    assert open_trial(Veto(), signals, NOW_S).trial is None
    assert open_trial(Veto(), pool(2, 10.0), NOW_S).trial is not None
    assert open_trial(OPEN, pool(3, 10.0), NOW_S + 1) == OPEN


def test_an_addition_that_has_no_rate_yet_or_is_new_is_not_judged() -> None:
    unmeasured = replace(warm(4)[3], tokens_per_s=0.0)
    signals = signals_of(
        0.0, (*warm(3), unmeasured), online_backlog_tokens=1.0, rate_tokens_per_s=1000.0
    )
    assert assess_trial(OPEN, signals, READY_S, COLD_START_S) == OPEN
    assert assess_trial(OPEN, pool(4, 1000.0), NOW_S + 59, 1.0) == OPEN
    assert assess_trial(OPEN, pool(4, 1000.0), NOW_S + 60, 1.0).is_active(NOW_S + 60)
