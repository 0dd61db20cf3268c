"""One round of a drill: run it, judge the lives of its jobs, and lose nothing of what went wrong.

A drill that breaks off may have met the very fault that it looks for, so its round counts as
failed for each promise of the drill. So does one in which a thread died: it may have been the
only one that looked.
"""

import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from chaos.errors import DrillError
from chaos.reports.measures import OTHERS, Measure
from chaos.reports.report import ABORTED_ROUNDS

Judge = Callable[[], Iterable[Measure]]


@dataclass(frozen=True, slots=True)
class Round:
    """Which drill runs, what it is to prove, and how to run it again."""

    part: str
    promises: frozenset[str]
    seed: int
    rerun: str


def run_round(one: Round, drill: Judge, lives: Judge) -> list[Measure]:
    """Return what a drill and the lives of its jobs come to, whatever happens on the way."""
    reasons: list[str] = []
    with _deaths_of_threads(reasons):
        found = _tried(drill, reasons)
        also = _tried(lives, reasons)
    # What happens to pass by in a drill for other promises is judged, and need not happen.
    found += [
        measure for measure in also if measure.has_evidence or measure.promise in one.promises
    ]
    for promise in sorted(one.promises - {measure.promise for measure in found}):
        reasons.append(f"nothing was measured of {promise}")
    broken = [
        Measure(
            promise=promise,
            what=ABORTED_ROUNDS,
            value=int(bool(reasons)),
            evidence="; ".join(reasons[:5]),
        )
        for promise in sorted(one.promises)
    ]
    return _stamped(one, found + broken)


def _tried(judge: Judge, reasons: list[str]) -> list[Measure]:
    """Return what a judge finds, and what it had found before it broke off."""
    found: list[Measure] = []
    try:
        for measure in judge():
            found.append(measure)
    except DrillError as failure:
        reasons.append(str(failure))
    except Exception as failure:  # noqa: BLE001  an answer that nobody expected is a finding, too
        reasons.append(told(failure))
    return found


@contextmanager
def _deaths_of_threads(reasons: list[str]) -> Iterator[None]:
    """Collect what ends threads in a block."""
    before = threading.excepthook

    def note(death: threading.ExceptHookArgs) -> None:
        name = death.thread.name if death.thread else "a thread"
        reasons.append(f"{name} died: {told(death.exc_value or death.exc_type())}")

    threading.excepthook = note
    try:
        yield
    finally:
        threading.excepthook = before


def told(failure: BaseException) -> str:
    """Return what failed, and where."""
    places = traceback.extract_tb(failure.__traceback__)[-3:]
    where = " > ".join(f"{place.name}:{place.lineno}" for place in places)
    return f"{type(failure).__name__} {failure} at {where}"


def _stamped(one: Round, found: Sequence[Measure]) -> list[Measure]:
    return [
        msgspec.structs.replace(
            measure,
            part=one.part if measure.promise in one.promises else OTHERS,
            seed=one.seed,
            rerun=one.rerun,
        )
        for measure in found
    ]
