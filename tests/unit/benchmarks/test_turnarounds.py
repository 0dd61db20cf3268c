"""Goal: a batch takes until the last first outcome of its items; rates are those of their part."""

from uuid import UUID

import pytest

from benchmarks.children.upstream import latency_at
from benchmarks.measurements.one_writer import PARTS, run_of
from benchmarks.stacks.batch_turnarounds import Turnaround, turnarounds
from tests.unit.batcher.builders import items_of, job_ref
from topics.records.records import Batch, Chunk


def batch(*parts: tuple[int, range]) -> Batch:
    chunks = [Chunk(job_ref(number), items_of(indexes)) for number, indexes in parts]
    return Batch(UUID(int=1), "b", chunks)


def test_a_batch_ends_with_the_last_of_its_items() -> None:
    ended_s = {(UUID(int=1), 0): 12.0, (UUID(int=1), 1): 17.0, (UUID(int=2), 0): 13.0}
    mixed = batch((1, range(2)), (2, range(1)))
    alone = batch((2, range(1)))
    jobs = {UUID(int=1), UUID(int=2)}
    found = turnarounds([(11.0, mixed), (10.0, alone)], ended_s, jobs)
    assert found == [Turnaround(10.0, 3.0, 1), Turnaround(11.0, 6.0, 3)]


def test_batches_of_other_jobs_and_without_all_outcomes_do_not_count() -> None:
    ended_s = {(UUID(int=1), 0): 12.0, (UUID(int=2), 0): 12.0}
    open_batch, other = batch((1, range(2))), batch((2, range(1)))
    assert turnarounds([(11.0, open_batch), (11.0, other)], ended_s, {UUID(int=1)}) == []


def test_rates_are_those_of_each_part() -> None:
    groups = [(0.0, 100), *((float(n), 100) for n in range(1, 6)), (5.5, 100)]
    groups += [(5.5 + n / 2, 100) for n in range(1, 5)]
    run = run_of(groups, {})
    assert run.items == 1_000
    assert run.seconds == 7.5
    rates = [run.facts[f"part_{number}"] for number in range(PARTS)]
    assert rates == pytest.approx([100.0] * 5 + [200.0] * 5)


def test_the_latency_changes_after_each_period() -> None:
    found = [latency_at(0.1, 1.0, 10.0, now_s=now_s) for now_s in (0.0, 9.9, 10.0, 19.9, 20.0)]
    assert found == [0.1, 0.1, 1.0, 1.0, 0.1]
