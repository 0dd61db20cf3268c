"""Goal: open items never exceed the limit by more than one item a batcher, and none is lost."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.flow_control.grants import (
    DEMAND_VOID_S,
    FORGET_S,
    WAITING_VOID_S,
    Grants,
    open_limit,
    smoothed_rate,
)


def test_shares_follow_what_batchers_hold() -> None:
    grants = Grants()
    grants.demand("a", 300, now_s=0)
    grants.demand("b", 100, now_s=0)
    assert grants.granted(200, now_s=1) == {"a": 150, "b": 50}


def test_without_demand_every_batcher_finds_credit() -> None:
    grants = Grants()
    grants.demand("a", 0, now_s=0)
    grants.demand("b", 0, now_s=0)
    assert grants.granted(10, now_s=0) == {"a": 5, "b": 5}


def test_a_batcher_whose_items_wait_loses_its_share_when_it_misses_some_beats() -> None:
    grants = Grants()
    grants.demand("a", 100, now_s=0)
    grants.demand("b", 100, now_s=WAITING_VOID_S + 0.1)
    assert grants.granted(10, now_s=WAITING_VOID_S) == {"a": 5, "b": 5}
    assert grants.granted(10, now_s=WAITING_VOID_S + 0.1) == {"b": 10}
    grants.demand("a", 100, now_s=WAITING_VOID_S + 0.2)
    assert grants.granted(10, now_s=WAITING_VOID_S + 0.2) == {"a": 5, "b": 5}


def test_one_that_has_nothing_speaks_seldom_and_may_be_silent_for_longer() -> None:
    grants = Grants()
    grants.demand("a", 0, now_s=0)
    assert grants.granted(10, now_s=DEMAND_VOID_S) == {"a": 10}
    assert grants.granted(10, now_s=DEMAND_VOID_S + 0.1) == {}


def test_grants_are_cumulative_and_void_with_the_epoch() -> None:
    grants = Grants()
    grants.demand("a", 1, now_s=0)
    grants.finished("a", 70)
    assert grants.granted(10, now_s=0) == {"a": 80}
    grants.next_epoch(in_flight=4)
    assert grants.granted(10, now_s=0) == {"a": 6}


def test_a_batcher_that_is_long_gone_is_forgotten_with_the_epoch() -> None:
    grants = Grants()
    grants.demand("gone", 0, now_s=0)
    grants.demand("a", 0, now_s=FORGET_S)
    grants.next_epoch(in_flight=0)
    assert set(grants.accounts) == {"gone", "a"}
    grants.demand("a", 0, now_s=FORGET_S + 1)
    assert set(grants.accounts) == {"gone", "a"}
    grants.next_epoch(in_flight=0)
    assert set(grants.accounts) == {"a"}


@given(st.dictionaries(st.sampled_from("abcde"), st.integers(0, 1000)), st.integers(0, 500))
def test_what_is_open_stays_within_the_limit(waiting: dict[str, int], limit: int) -> None:
    grants = Grants()
    for name, held in waiting.items():
        grants.demand(name, held, now_s=0)
    granted = grants.granted(limit, now_s=0)
    assert sum(granted.values()) <= max(limit, limit + len(waiting) if limit else 0)
    assert (sum(granted.values()) > 0) == bool(waiting and limit)


def test_a_slow_engine_holds_few_items_it_cannot_start() -> None:
    assert open_limit(4, 1.0, 100) == 6  # two batches of 2.5 s
    assert open_limit(64, 0.0, 100) == 128  # unknown: two batches of its concurrency
    assert open_limit(64, 40_000.0, 100) == 4064  # concurrency plus 100 ms
    assert open_limit(1, 0.0, 100) == 2


def test_the_rate_starts_with_the_first_window_and_then_follows() -> None:
    first = smoothed_rate(0.0, 100, 0.2)
    assert first == 500
    assert 500 < smoothed_rate(first, 200, 0.2) < 1000


def test_what_is_new_has_a_share_however_much_came_from_elsewhere() -> None:
    grants = Grants()
    grants.demand("a", 5, now_s=0)
    grants.next_epoch(1000)
    assert grants.granted(128, now_s=0) == {"a": 32}
    assert grants.granted(0, now_s=0) == {"a": 0}
