"""Goal: disturbances of the machine cancel out, and no void run becomes a figure."""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from benchmarks.measurements.sync_overhead import added_rows, run_alternating
from benchmarks.reporting import table
from benchmarks.runs import Report, Run, Setup, VoidRunError
from benchmarks.statistics.intervals import interval, ratios
from benchmarks.statistics.pairing import (
    VOIDS_MAX,
    is_peer_first,
    paired_row,
    role_rows,
    run_pairs,
    run_repeatedly,
    single_row,
)


def setup_of(pairs: int) -> Setup:
    return Setup(work=Path("unused"), pairs=pairs, items=None, quick=False, note=lambda _: None)


def run_of(seconds: float, cpu_s: float = 1.0) -> Run:
    return Run(items=100, seconds=seconds, cpu_s={"role": cpu_s})


class TwoSides:
    """Records the order in which both sides run; each run is slower than the last."""

    def __init__(self, voids: Iterator[bool]) -> None:
        self.order = ""
        self._voids = voids

    def ours(self) -> Run:
        return self._run("A", 1.0)

    def peer(self) -> Run:
        return self._run("B", 2.0)

    def _run(self, side: str, seconds: float) -> Run:
        self.order += side
        if side == "A" and next(self._voids, False):
            raise VoidRunError("wrong output")
        return run_of(seconds * (1 + len(self.order) / 10))


def test_pairs_are_interleaved_and_the_first_is_dropped() -> None:
    sides = TwoSides(iter(()))

    pairs, voids = run_pairs(sides.ours, sides.peer, setup_of(3))

    assert sides.order == "ABBAABBA"
    assert (len(pairs), voids) == (3, [])
    assert pairs[0].peer.seconds == pytest.approx(2 * 1.3)  # third of all runs
    assert [is_peer_first(pair) for pair in range(4)] == [False, True, False, True]


def test_rounds_of_calls_alternate() -> None:
    order: list[str] = []
    parts = [partial(order.append, name) for name in "ABC"]
    for number in range(3):
        run_alternating(number, parts)

    assert "".join(order) == "ABCCBAABC"


def test_three_consecutive_hops_are_one_sample() -> None:
    run = Run(
        items=100,
        seconds=1.0,
        cpu_s={},
        facts={
            f"{name}_p{percent}_ms": ms
            for name, ms in (("facade", 16.0), ("direct", 6.0), ("hops", 2.0))
            for percent in (50, 99)
        },
    )
    added = [row for row in added_rows(1, [run]) if row.ratio is not None]

    assert [(row.ours, row.peer) for row in added] == [(10.0, 2.0)] * 2
    assert [row.ratio and row.ratio.median for row in added] == [5.0] * 2


def test_a_void_run_is_reported_and_its_pair_repeated() -> None:
    sides = TwoSides(iter((False, True)))

    pairs, voids = run_pairs(sides.ours, sides.peer, setup_of(2))

    assert len(pairs) == 2
    assert voids == ["wrong output"]


def test_too_many_void_runs_end_the_benchmark() -> None:
    sides = TwoSides(iter([True] * (VOIDS_MAX + 1)))
    with pytest.raises(VoidRunError):
        run_repeatedly(sides.ours, setup_of(2))


def test_drift_of_the_machine_does_not_change_the_ratio() -> None:
    sides = TwoSides(iter(()))

    pairs, _ = run_pairs(sides.ours, sides.peer, setup_of(8))
    row = paired_row("rate", "items/s", pairs, lambda run: run.rate)

    assert row.ratio is not None
    assert row.ratio.median == pytest.approx(2.0, rel=0.05)
    assert row.ratio.low <= 2.0 <= row.ratio.high


def test_cpu_of_roles_is_per_item() -> None:
    (row,) = role_rows([run_of(1.0, cpu_s=0.01)], "ours")

    assert row.metric == "ours: role"
    assert row.ours == pytest.approx(100.0)


def test_the_bounds_narrow_with_more_samples() -> None:
    few = interval([0.8, 1.0, 1.2])
    many = interval([0.8, 1.0, 1.2] * 20)

    assert (few.low, few.median, few.high) == (0.8, 1.0, 1.2)
    assert many.low <= many.median <= many.high
    assert many.high - many.low < few.high - few.low


@pytest.mark.parametrize(
    ("count", "covered", "low"),
    [(2, None, 0), (3, None, 0), (5, None, 0), (6, 0.96875, 0), (7, 0.984375, 0), (15, 0.9648, 3)],
)
def test_bounds_have_their_coverage_of_the_median(
    count: int, covered: float | None, low: float
) -> None:
    found = interval([float(value) for value in range(count)])

    assert (found.low, found.high, found.count) == (low, count - 1 - low, count)
    assert found.coverage == pytest.approx(covered, abs=1e-4)


def test_an_interval_covers_the_true_median_at_its_coverage() -> None:
    rng = random.Random(7)
    found = [interval([rng.gauss(1.0, 0.1) for _ in range(15)]) for _ in range(2_000)]
    covered = sum(one.low <= 1.0 <= one.high for one in found) / len(found)

    assert found[0].coverage is not None
    assert covered == pytest.approx(found[0].coverage, abs=0.02)


def test_a_report_of_few_samples_has_a_range() -> None:
    def printed(count: int) -> str:
        row = single_row("rate", "1/s", [run_of(1.0)] * count, lambda run: run.rate)
        return table([Report(name="any", rows=[row])])

    assert "[100, 100] range of 5" in printed(5)
    assert "%" not in printed(5)
    assert "[100, 100] 98%" in printed(7)


def test_ratios_are_computed_for_each_pair() -> None:
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="argument"):
        ratios([1.0], [1.0, 2.0])
