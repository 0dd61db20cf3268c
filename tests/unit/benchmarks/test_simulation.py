"""Goal: the rules of all stages together give tenants their shares and jobs their deadlines."""

import pytest

from benchmarks.children.disciplines import FAIR
from benchmarks.data.input_files import SEED
from benchmarks.data.published_traces import AZURE_CONVERSATION, draw_lengths
from benchmarks.measurements.virtual_harvest import run_engine
from benchmarks.measurements.virtual_scheduling import fairness, overload, small_jobs
from benchmarks.simulation.events import Events
from benchmarks.simulation.shared_engine import BoundedBulkPrompts
from gpu_consumers.engines.simulated.engine_steps import PROMPT_TOKENS_MAX, RunningSequence


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


def test_a_small_job_beside_a_large_one_waits_for_the_steps_of_a_full_engine() -> None:
    assert small_jobs(FAIR) < 1.75 * small_jobs(FAIR, is_alone=True)


def test_bulk_uses_what_calls_leave_and_the_headroom_bounds_what_they_wait() -> None:
    items = draw_lengths(AZURE_CONVERSATION, 5_000, seed=SEED)
    alone = run_engine(60.0, [])
    bulk_alone = run_engine(60.0, items, has_calls=False)
    beside = run_engine(60.0, items)
    without = run_engine(60.0, items, headroom=0, preempts=False)
    assert beside.bulk >= 0.95 * (bulk_alone.bulk - beside.online)
    first = [one.first_token_ms["p50_ms"] for one in (alone, beside, without)]
    assert first[0] < first[1] < first[2]
    assert run_engine(60.0, items, headroom=0).preempted > 0


def test_with_a_bound_prompts_of_calls_go_before_those_of_items_that_have_begun() -> None:
    steps = BoundedBulkPrompts(100)
    item, call = RunningSequence(250, 1), RunningSequence(3000, 1, is_online=True)
    steps.add(item)
    assert steps.start_step() == (1, 100)
    assert steps.end_step() == []
    steps.add(call)
    assert steps.start_step() == (1, PROMPT_TOKENS_MAX)
    assert steps.end_step() == []
    assert steps.start_step() == (2, 3000 - PROMPT_TOKENS_MAX + 100)
    assert steps.end_step() == [call]
    assert steps.start_step() == (1, 50)
    assert steps.end_step() == [item]
    assert steps.is_empty
