"""Goal: open items never exceed the limit by more than one item a batcher, and none is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.flow_control.grants import (
    DEMAND_VOID_S,
    FORGET_S,
    WAITING_VOID_S,
    WINDOW_S_MAX,
    WINDOW_S_MIN,
    Grants,
    MeasuredRate,
    bulk_limit,
)


@pytest.mark.parametrize(
    ("waiting", "limit", "granted"), [((300, 100), 200, (150, 50)), ((0, 0), 10, (5, 5))]
)
def test_shares_follow_the_waiting_items_and_are_equal_without_any(
    waiting: tuple[int, int], limit: int, granted: tuple[int, int]
) -> None:
    grants = Grants()
    for name, count in zip("ab", waiting, strict=True):
        grants.set_demand(name, count, now_s=0)
    assert grants.compute_grants(limit, now_s=1) == dict(zip("ab", granted, strict=True))


def test_published_shares_replace_the_waiting_items_and_what_is_not_needed_goes_to_others() -> None:
    grants = Grants()
    grants.set_demand("a", 300, 3.0, now_s=0)
    grants.set_demand("b", 1000, 1.0, now_s=0)
    assert grants.compute_grants(200, now_s=0) == {"a": 150, "b": 50}
    grants.set_demand("a", 10, 3.0, now_s=0)
    assert grants.compute_grants(200, now_s=0) == {"a": 10, "b": 190}
    grants.add_arrived("a", 80)
    grants.add_finished("a", 20)
    assert grants.compute_grants(200, now_s=0) == {"a": 90, "b": 130}
    grants.set_demand("b", 0, 0.0, now_s=0)
    assert grants.compute_grants(200, now_s=0) == {"a": 220, "b": 1}


def test_waiting_items_decide_while_a_batcher_of_an_older_release_has_some() -> None:
    grants = Grants()
    grants.set_demand("a", 100, 9.0, now_s=0)
    grants.set_demand("old", 300, now_s=0)
    assert grants.compute_grants(200, now_s=0) == {"a": 50, "old": 150}
    grants.set_demand("old", 0, now_s=0)
    assert grants.compute_grants(100, now_s=0) == {"a": 100, "old": 1}


def test_a_silent_batcher_loses_its_share_later_without_waiting_items() -> None:
    grants = Grants()
    grants.set_demand("a", 100, now_s=0)
    grants.set_demand("b", 100, now_s=WAITING_VOID_S + 0.1)
    assert grants.compute_grants(10, now_s=WAITING_VOID_S) == {"a": 5, "b": 5}
    assert grants.compute_grants(10, now_s=WAITING_VOID_S + 0.1) == {"b": 10}
    grants.set_demand("a", 100, now_s=WAITING_VOID_S + 0.2)
    assert grants.compute_grants(10, now_s=WAITING_VOID_S + 0.2) == {"a": 5, "b": 5}

    without_items = Grants()
    without_items.set_demand("a", 0, now_s=0)
    assert without_items.compute_grants(10, now_s=DEMAND_VOID_S) == {"a": 10}
    assert without_items.compute_grants(10, now_s=DEMAND_VOID_S + 0.1) == {}


def test_grants_are_cumulative_and_void_with_the_epoch() -> None:
    grants = Grants()
    grants.set_demand("a", 1, now_s=0)
    grants.add_arrived("a", 75)
    grants.add_finished("a", 70)
    assert grants.compute_grants(10, now_s=0) == {"a": 80}
    grants.start_epoch(in_flight=4)
    assert grants.compute_grants(10, now_s=0) == {"a": 6}


def test_a_long_silent_batcher_is_forgotten_with_the_epoch() -> None:
    grants = Grants()
    grants.set_demand("gone", 0, now_s=0)
    grants.set_demand("a", 0, now_s=FORGET_S)
    grants.start_epoch(in_flight=0)
    assert set(grants.accounts) == {"gone", "a"}
    grants.set_demand("a", 0, now_s=FORGET_S + 1)
    assert set(grants.accounts) == {"gone", "a"}
    grants.start_epoch(in_flight=0)
    assert set(grants.accounts) == {"a"}


@given(st.dictionaries(st.sampled_from("abcde"), st.integers(0, 1000)), st.integers(0, 500))
def test_open_items_stay_within_the_limit(waiting: dict[str, int], limit: int) -> None:
    grants = Grants()
    for name, held in waiting.items():
        grants.set_demand(name, held, now_s=0)
    granted = grants.compute_grants(limit, now_s=0)
    assert sum(granted.values()) <= max(limit, limit + len(waiting) if limit else 0)
    assert (sum(granted.values()) > 0) == bool(waiting and limit)


def test_a_slow_engine_has_few_waiting_items() -> None:
    assert bulk_limit(4, 1.0, 100) == 6  # two batches of 2.5 s
    assert bulk_limit(64, 0.0, 100) == 128  # unknown: two batches of its concurrency
    assert bulk_limit(64, 40_000.0, 100) == 4064  # concurrency plus 100 ms
    assert bulk_limit(1, 0.0, 100) == 2


def test_new_items_have_a_share_despite_items_of_other_epochs() -> None:
    grants = Grants()
    grants.set_demand("a", 5, now_s=0)
    grants.start_epoch(1000)
    assert grants.compute_grants(128, now_s=0) == {"a": 32}
    assert grants.compute_grants(0, now_s=0) == {"a": 0}


TICK_S = 0.2


class TickingReplica:
    """A replica whose rate is updated at each tick."""

    def __init__(self, concurrency: int) -> None:
        self.rate, self.concurrency = MeasuredRate(), concurrency
        self.now_s, self.in_flight = 0.0, 0

    def arrive(self, count: int) -> None:
        self.in_flight += count
        self.rate.mark_busy(self.in_flight, now_s=self.now_s)

    def end(self, count: int, *, answered: bool = True) -> None:
        if answered:
            self.rate.add_answered(count)
        self.in_flight -= count
        if not self.in_flight:
            self.rate.mark_idle(now_s=self.now_s)

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            self.rate.update(self.in_flight, concurrency=self.concurrency, now_s=self.now_s)

    def serve(self, count: int) -> None:
        """Answer `count` items; as many arrive."""
        self.end(count)
        self.arrive(count)


def test_an_engine_slower_than_the_update_interval_is_measured() -> None:
    replica = TickingReplica(concurrency=8)
    replica.arrive(8)
    for _ in range(10):
        replica.wait(30)
        replica.serve(8)
    assert replica.rate.items_per_s == pytest.approx(8 / 30, rel=0.05)


def test_items_that_end_across_two_updates_are_one_window() -> None:
    replica = TickingReplica(concurrency=8)
    replica.arrive(16)
    for _ in range(10):
        replica.wait(19.8)
        replica.serve(4)
        replica.wait(TICK_S)
        replica.serve(4)
        assert (
            replica.rate.items_per_s < 0.5
        )  # 0.4 is right; half of the items in one tick would be 20
    assert replica.rate.items_per_s == pytest.approx(8 / 20, rel=0.1)


def test_a_fast_engine_is_measured_at_each_update() -> None:
    replica = TickingReplica(concurrency=64)
    replica.arrive(300)
    for _ in range(30):
        replica.serve(200)
        replica.wait(TICK_S)
    assert replica.rate.items_per_s == pytest.approx(1000)


def test_a_slowdown_lowers_the_rate_before_an_item_ends() -> None:
    replica = TickingReplica(concurrency=8)
    replica.arrive(100)
    for _ in range(10):
        replica.serve(80)
        replica.wait(TICK_S)
    assert replica.rate.items_per_s == pytest.approx(400)
    replica.wait(20)
    assert replica.rate.items_per_s == pytest.approx(8 / 20, rel=0.1)


def test_idle_time_does_not_lower_the_rate() -> None:
    replica = TickingReplica(concurrency=8)
    for _ in range(10):
        replica.arrive(8)
        replica.wait(1)
        replica.end(8)
        replica.wait(20)
    assert replica.rate.items_per_s == pytest.approx(8.0)


def test_a_window_has_a_maximum_length() -> None:
    replica = TickingReplica(concurrency=8)
    replica.arrive(8)
    replica.end(7, answered=False)
    replica.serve(1)
    replica.wait(WINDOW_S_MAX - 1)
    assert replica.rate.items_per_s == 0.0
    replica.wait(1.2)
    assert replica.rate.items_per_s == pytest.approx(1 / WINDOW_S_MAX, rel=0.01)


def test_a_short_window_does_not_raise_the_rate() -> None:
    replica = TickingReplica(concurrency=8)
    replica.arrive(1)
    replica.now_s += 0.001
    replica.end(1)
    replica.wait(1)
    assert replica.rate.items_per_s == pytest.approx(1 / WINDOW_S_MIN)
