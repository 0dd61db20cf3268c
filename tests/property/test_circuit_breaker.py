"""Goal: an upstream that fails everything charges few items; items that fail alone are charged."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.engines.openai_http.circuit_breaker import CircuitBreaker

OPEN_S = 900.0


@dataclass
class HeldClock:
    now_s: float = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s


@given(st.integers(2, 50), st.lists(st.booleans(), max_size=300))
def test_only_a_row_of_failures_opens_it_and_any_answer_closes_it(
    failures_max: int, answers: list[bool]
) -> None:
    breaker = CircuitBreaker(failures_max, OPEN_S, HeldClock())
    row = 0
    for is_good in answers:
        if is_good:
            breaker.record_success()
            row = 0
        else:
            row += 1
            assert breaker.record_failure() is (row >= failures_max)


@given(st.lists(st.floats(0.1, 20), min_size=30, max_size=300))
def test_an_outage_below_its_bound_charges_fewer_than_the_row(gaps_s: list[float]) -> None:
    clock = HeldClock()
    breaker = CircuitBreaker(20, OPEN_S, clock)
    charged = 0
    for gap_s in gaps_s:
        clock.now_s += gap_s
        charged += not breaker.record_failure()
        if clock.now_s >= OPEN_S:
            break
    assert charged == 19


def test_after_its_bound_failures_are_believed_until_something_goes_well() -> None:
    clock = HeldClock()
    breaker = CircuitBreaker(2, OPEN_S, clock)
    assert [breaker.record_failure() for _ in range(3)] == [False, True, True]
    clock.now_s = OPEN_S
    assert [breaker.record_failure() for _ in range(3)] == [False] * 3
    breaker.record_success()
    assert [breaker.record_failure() for _ in range(2)] == [False, True]
