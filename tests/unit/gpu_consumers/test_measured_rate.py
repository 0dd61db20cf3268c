"""Goal: a rate that is neither too high on slow engines nor fed by what was not answered."""

import pytest

from gpu_consumers.flow_control.measured_rate import WINDOW_S_MAX, WINDOW_S_MIN, MeasuredRate

TICK_S = 0.2


class World:
    """A replica that is looked at each tick."""

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
        """End some and let as many come."""
        self.end(count)
        self.arrive(count)


def test_an_engine_slower_than_the_update_interval_is_measured() -> None:
    world = World(concurrency=8)
    world.arrive(8)
    for _ in range(10):
        world.wait(30)
        world.serve(8)
    assert world.rate.items_per_s == pytest.approx(8 / 30, rel=0.05)


def test_items_that_end_across_two_updates_are_one_window() -> None:
    world = World(concurrency=8)
    world.arrive(16)
    for _ in range(10):
        world.wait(19.8)
        world.serve(4)
        world.wait(TICK_S)
        world.serve(4)
        assert world.rate.items_per_s < 0.5  # 0.4 is right; the half in a look is 20
    assert world.rate.items_per_s == pytest.approx(8 / 20, rel=0.1)


def test_a_fast_engine_is_measured_at_each_update() -> None:
    world = World(concurrency=64)
    world.arrive(300)
    for _ in range(30):
        world.serve(200)
        world.wait(TICK_S)
    assert world.rate.items_per_s == pytest.approx(1000)


def test_a_slowdown_lowers_the_rate_before_an_item_ends() -> None:
    world = World(concurrency=8)
    world.arrive(100)
    for _ in range(10):
        world.serve(80)
        world.wait(TICK_S)
    assert world.rate.items_per_s == pytest.approx(400)
    world.wait(20)
    assert world.rate.items_per_s == pytest.approx(8 / 20, rel=0.1)


def test_requeued_items_are_no_throughput() -> None:
    world = World(concurrency=8)
    world.arrive(100)
    world.end(100, answered=False)
    world.wait(1)
    assert world.rate.items_per_s == 0.0


def test_idle_time_does_not_lower_the_rate() -> None:
    world = World(concurrency=8)
    for _ in range(10):
        world.arrive(8)
        world.wait(1)
        world.end(8)
        world.wait(20)
    assert world.rate.items_per_s == pytest.approx(8.0)


def test_a_window_has_a_maximum_length() -> None:
    world = World(concurrency=8)
    world.arrive(8)
    world.end(7, answered=False)
    world.serve(1)
    world.wait(WINDOW_S_MAX - 1)
    assert world.rate.items_per_s == 0.0
    world.wait(1.2)
    assert world.rate.items_per_s == pytest.approx(1 / WINDOW_S_MAX, rel=0.01)


def test_a_short_window_does_not_raise_the_rate() -> None:
    world = World(concurrency=8)
    world.arrive(1)
    world.now_s += 0.001
    world.end(1)
    world.wait(1)
    assert world.rate.items_per_s == pytest.approx(1 / WINDOW_S_MIN)
