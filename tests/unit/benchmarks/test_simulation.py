"""Goal: the rules of all stages together give tenants their shares and jobs their deadlines."""

import pytest

from benchmarks.children.disciplines import FAIR
from benchmarks.measurements.virtual_scheduling import fairness, overload
from benchmarks.simulation.events import Events


def test_events_run_in_the_order_of_their_times() -> None:
    events, seen = Events(), list[tuple[str, float]]()
    events.call_later(2.0, lambda: seen.append(("late", events.monotonic_s())))
    events.call_later(1.0, lambda: events.call_later(0.5, lambda: seen.append(("b", 1.5))))
    events.call_later(1.0, lambda: seen.append(("a", events.monotonic_s())))
    events.run_until(1.9)
    assert (seen, events.monotonic_s()) == ([("a", 1.0), ("b", 1.5)], 1.9)
    events.run_until(2.0)
    assert seen[-1] == ("late", 2.0)


@pytest.mark.parametrize(("batcher_count", "share_min"), [(1, 0.93), (3, 0.8)])
def test_a_tenant_that_floods_a_busy_pool_takes_no_share_of_others(
    batcher_count: int, share_min: float
) -> None:
    gap, share, used = fairness(batcher_count)
    assert gap <= 1
    assert share >= share_min
    assert used >= 0.99


def test_an_overloaded_tenant_completes_jobs_in_time_rather_than_all_jobs_late() -> None:
    in_time, later, oldest = overload(FAIR, 300)
    fifo, fifo_later, _ = overload("fifo", 300)
    assert in_time > 1.5 * fifo
    assert later > 4 * fifo_later
    assert oldest < 1.1
