"""One round of a drill: run it, check its jobs' lifecycle, and collect every measure.

A drill that aborts may have met the defect that it tests for. Its round therefore counts as failed
for each promise of the drill, as does a round in which a thread died: that thread may have been the
only observer.
"""

import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from chaos.errors import DrillError
from chaos.reports.measures import OTHER_DRILLS, Measure
from chaos.reports.report import ABORTED_ROUNDS

Check = Callable[[], Iterable[Measure]]


@dataclass(frozen=True, slots=True)
class Round:
    """A drill's name, the promises that it tests, its seed, and the command that repeats it."""

    part: str
    promises: Set[str]
    seed: int
    rerun: str


def run_round(current: Round, drill: Check, lifecycle: Check) -> list[Measure]:
    """Return the measures of a drill and of its jobs' lifecycle, also when either aborts."""
    reasons: list[str] = []
    with _thread_failures(reasons):
        found = _collect(drill, reasons)
        observed = _collect(lifecycle, reasons)
    # A promise that the drill does not test is checked where there is evidence, and needs none.
    found += [
        measure
        for measure in observed
        if measure.has_evidence or measure.promise in current.promises
    ]
    for promise in sorted(current.promises - {measure.promise for measure in found}):
        reasons.append(f"nothing was measured of {promise}")
    aborted = [
        Measure(promise, ABORTED_ROUNDS, int(bool(reasons)), evidence="; ".join(reasons[:5]))
        for promise in sorted(current.promises)
    ]
    return _labelled(current, found + aborted)


def _collect(check: Check, reasons: list[str]) -> list[Measure]:
    """Return the measures of a check, up to the point where it aborts."""
    found: list[Measure] = []
    try:
        for measure in check():
            found.append(measure)
    except DrillError as failure:
        reasons.append(str(failure))
    except Exception as failure:  # noqa: BLE001  an unexpected error is a finding, too
        reasons.append(describe_error(failure))
    return found


@contextmanager
def _thread_failures(reasons: list[str]) -> Iterator[None]:
    """Append a reason for each thread that dies in the block."""
    before = threading.excepthook

    def note(death: threading.ExceptHookArgs) -> None:
        name = death.thread.name if death.thread else "a thread"
        reasons.append(f"{name} died: {describe_error(death.exc_value or death.exc_type())}")

    threading.excepthook = note
    try:
        yield
    finally:
        threading.excepthook = before


def describe_error(failure: BaseException) -> str:
    """Return an error with the innermost places of its traceback."""
    frames = traceback.extract_tb(failure.__traceback__)[-3:]
    where = " > ".join(f"{frame.name}:{frame.lineno}" for frame in frames)
    return f"{type(failure).__name__} {failure} at {where}"


def _labelled(current: Round, found: Sequence[Measure]) -> list[Measure]:
    return [
        msgspec.structs.replace(
            measure,
            part=current.part if measure.promise in current.promises else OTHER_DRILLS,
            seed=current.seed,
            rerun=current.rerun,
        )
        for measure in found
    ]
