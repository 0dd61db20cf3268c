"""Interleaved runs in the order A B B A A B B A …, so that drift affects both sides equally."""

from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.runs import Pair, Row, Run, Setup, VoidRunError
from benchmarks.statistics.intervals import interval, ratios

VOIDS_MAX = 2
"""A benchmark fails after more void runs than this."""

RunOnce = Callable[[], Run]


def is_peer_first(pair: int) -> bool:
    """Return whether the peer runs first in a pair."""
    return pair % 2 == 1


def run_pairs(ours: RunOnce, peer: RunOnce, setup: Setup) -> tuple[list[Pair], list[str]]:
    """Return `setup.pairs` pairs and the reasons of void runs; the first pair is dropped.

    A void run repeats its whole pair. Raises VoidRunError above `VOIDS_MAX` of them.
    """
    pairs: list[Pair] = []
    voids: list[str] = []
    while len(pairs) < setup.pairs + 1:
        try:
            pair = _run_pair(ours, peer, swapped=is_peer_first(len(pairs)))
        except VoidRunError as void:
            voids.append(str(void))
            setup.note(f"void: {void}")
            if len(voids) > VOIDS_MAX:
                raise
            continue
        label = f"pair {len(pairs)}/{setup.pairs}" if pairs else "dropped pair"
        setup.note(
            f"{label}: ours {pair.ours.rate:,.0f}/s {pair.ours.cpu_us:.1f} µs, "
            f"peer {pair.peer.rate:,.0f}/s {pair.peer.cpu_us:.1f} µs"
        )
        pairs.append(pair)
    return pairs[1:], voids


def run_repeatedly(measure: RunOnce, setup: Setup) -> tuple[list[Run], list[str]]:
    """Return `setup.pairs` runs of one side and the reasons of void ones; the first is dropped."""
    runs: list[Run] = []
    voids: list[str] = []
    while len(runs) < setup.pairs + 1:
        try:
            runs.append(measure())
        except VoidRunError as void:
            voids.append(str(void))
            setup.note(f"void: {void}")
            if len(voids) > VOIDS_MAX:
                raise
            continue
        setup.note(f"run {len(runs) - 1}: {runs[-1].rate:,.0f}/s {runs[-1].cpu_us:.1f} µs")
    return runs[1:], voids


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


def _run_pair(ours: RunOnce, peer: RunOnce, *, swapped: bool) -> Pair:
    if swapped:
        second = peer()
        return Pair(ours=ours(), peer=second)
    first = ours()
    return Pair(ours=first, peer=peer())
