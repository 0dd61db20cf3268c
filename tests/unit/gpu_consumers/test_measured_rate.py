"""Goal: the rate is right for slow and fast engines and counts only answered items."""

import pytest

from gpu_consumers.flow_control.grants import WINDOW_S_MAX, WINDOW_S_MIN, MeasuredRate

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


def test_requeued_items_are_no_throughput() -> None:
    replica = TickingReplica(concurrency=8)
    replica.arrive(100)
    replica.end(100, answered=False)
    replica.wait(1)
    assert replica.rate.items_per_s == 0.0


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
