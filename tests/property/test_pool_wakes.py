"""Goal: a predicted start is a time that a client can wait for, whatever a record says."""

import math

from hypothesis import given
from hypothesis import strategies as st

from api.online.admit.pool_wakes import (
    DECISION_S,
    WAIT_S_MAX,
    WAIT_S_MIN,
    PoolStart,
    predicted_wait_s,
)

ANY = st.floats(allow_nan=True, allow_infinity=True)
SECONDS = st.floats(0, 3600)


@given(ANY, ANY, st.none() | ANY, st.booleans(), st.booleans())
def test_a_predicted_start_is_finite_and_never_below_the_minimum(
    start_s: float, wake_s: float, elapsed_s: float | None, is_waking: bool, has_standby: bool
) -> None:
    found = predicted_wait_s(PoolStart(start_s, wake_s, elapsed_s, is_waking, has_standby))
    assert math.isfinite(found)
    assert WAIT_S_MIN <= found <= WAIT_S_MAX


@given(SECONDS, SECONDS, SECONDS)
def test_a_running_start_nears_its_end_until_it_is_late_and_then_grows(
    start_s: float, first_s: float, second_s: float
) -> None:
    earlier_s, later_s = sorted((first_s, second_s))
    before = predicted_wait_s(PoolStart(start_s, 0.0, earlier_s))
    after = predicted_wait_s(PoolStart(start_s, 0.0, later_s))
    if later_s <= start_s:
        assert after <= before
    elif earlier_s >= start_s:
        assert after >= before


@given(SECONDS, SECONDS)
def test_a_late_start_takes_as_long_again_as_it_is_late(start_s: float, late_s: float) -> None:
    found = predicted_wait_s(PoolStart(start_s, 0.0, start_s + late_s))
    assert math.isclose(found, WAIT_S_MIN + late_s, abs_tol=1e-6)


@given(SECONDS, SECONDS, st.booleans())
def test_a_pool_that_nothing_starts_is_first_decided_about(
    start_s: float, wake_s: float, has_standby: bool
) -> None:
    found = predicted_wait_s(PoolStart(start_s, wake_s, has_standby=has_standby))
    assert found == (wake_s if has_standby else start_s) + DECISION_S


@given(SECONDS, SECONDS, SECONDS)
def test_a_replica_in_standby_never_delays(start_s: float, wake_s: float, elapsed_s: float) -> None:
    without = predicted_wait_s(PoolStart(start_s, wake_s, elapsed_s))
    assert predicted_wait_s(PoolStart(start_s, wake_s, elapsed_s, has_standby=True)) <= without
    assert predicted_wait_s(PoolStart(start_s, wake_s, elapsed_s, is_waking=True)) <= without
