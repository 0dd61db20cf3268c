"""Interleaved runs in the order A B B A A B B A …, so that drift affects both sides equally."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeVar

from benchmarks.runs import Pair, Row, Run, Setup, VoidRunError
from benchmarks.statistics.intervals import interval, ratios

VOIDS_MAX = 2
"""A benchmark fails after more void runs than this."""

RunOnce = Callable[[], Run]
T = TypeVar("T", Run, Pair)


def is_peer_first(pair: int) -> bool:
    """Return whether the peer runs first in a pair."""
    return pair % 2 == 1


def run_pairs(ours: RunOnce, peer: RunOnce, setup: Setup) -> tuple[list[Pair], list[str]]:
    """Return `setup.pairs` pairs and the reasons of void runs; the first pair is dropped.

    A void run repeats its whole pair. Raises VoidRunError above `VOIDS_MAX` of them.
    """

    def run_pair(number: int) -> Pair:
        if is_peer_first(number):
            first = peer()
            pair = Pair(ours=ours(), peer=first)
        else:
            first = ours()
            pair = Pair(ours=first, peer=peer())
        setup.note(f"pair {number}/{setup.pairs}: ours {pair.ours}, peer {pair.peer}")
        return pair

    return _repeat(run_pair, setup)


def run_repeatedly(measure: RunOnce, setup: Setup) -> tuple[list[Run], list[str]]:
    """Return `setup.pairs` runs of one side and the reasons of void ones; the first is dropped."""

    def run_once(number: int) -> Run:
        run = measure()
        setup.note(f"run {number}/{setup.pairs}: {run}")
        return run

    return _repeat(run_once, setup)


def _repeat(measure: Callable[[int], T], setup: Setup) -> tuple[list[T], list[str]]:
    """Call `measure` with 0, which is dropped, up to `setup.pairs`, again after a void run."""
    found: list[T] = []
    voids: list[str] = []
    while len(found) <= setup.pairs:
        try:
            found.append(measure(len(found)))
        except VoidRunError as void:
            voids.append(str(void))
            setup.note(f"void: {void}")
            if len(voids) > VOIDS_MAX:
                raise
    return found[1:], voids


def fact(name: str) -> Callable[[Run], float]:
    """Return a function that reads a fact of a run."""
    return lambda run: run.facts[name]


def paired_row(
    metric: str, unit: str, pairs: Sequence[Pair], value: Callable[[Run], float], *, goal: str = ""
) -> Row:
    """Return the medians of both sides and the interval of their ratio."""
    ours, peer = [value(pair.ours) for pair in pairs], [value(pair.peer) for pair in pairs]
    ratio = interval(ratios(ours, peer)) if all(peer) else None
    return Row(
        metric=metric, unit=unit, ours=median(ours), peer=median(peer), ratio=ratio, goal=goal
    )


def single_row(
    metric: str, unit: str, runs: Sequence[Run], value: Callable[[Run], float], *, goal: str = ""
) -> Row:
    """Return the median of one side and its interval."""
    spread = interval([value(run) for run in runs])
    return Row(metric=metric, unit=unit, ours=spread.median, spread=spread, goal=goal)


def role_rows(runs: Sequence[Run], side: str) -> list[Row]:
    """Return the CPU of each role."""
    roles = sorted({role for run in runs for role in run.cpu_s})
    return [
        single_row(
            f"{side}: {role}",
            "µs CPU/item",
            runs,
            lambda run, role=role: run.cpu_s.get(role, 0.0) / run.items * 1e6,  # type: ignore[misc]
        )
        for role in roles
    ]
