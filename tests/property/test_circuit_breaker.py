"""Goal: a failing upstream charges few items; items that fail on their own are charged."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.engines.openai_http.upstream_failures import CircuitBreaker
from tests.support.clock import ManualClock

OPEN_S = 900.0


@given(st.integers(2, 50), st.lists(st.booleans(), max_size=300))
def test_consecutive_failures_open_and_any_answer_closes(
    failures_max: int, answers: list[bool]
) -> None:
    breaker = CircuitBreaker(failures_max, OPEN_S, ManualClock())
    row = 0
    for is_good in answers:
        if is_good:
            breaker.record_success()
            row = 0
        else:
            row += 1
            assert breaker.record_failure() is (row >= failures_max)


@given(st.lists(st.floats(0.1, 20), min_size=30, max_size=300))
def test_outage_charges_fewer_items_than_the_threshold(gaps_s: list[float]) -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(20, OPEN_S, clock)
    charged = 0
    for gap_s in gaps_s:
        clock.now_s += gap_s
        charged += not breaker.record_failure()
        if clock.now_s >= OPEN_S:
            break
    assert charged == 19


def test_failures_are_charged_again_after_the_open_time() -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(2, OPEN_S, clock)
    assert [breaker.record_failure() for _ in range(3)] == [False, True, True]
    clock.now_s = OPEN_S
    assert [breaker.record_failure() for _ in range(3)] == [False] * 3
    breaker.record_success()
    assert [breaker.record_failure() for _ in range(2)] == [False, True]
