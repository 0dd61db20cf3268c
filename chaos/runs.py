"""A run: the rounds of every selected drill, each suite on an installation of its own.

A drill that aborts may have met the defect that it tests for. Its round therefore counts as failed
for each promise of the drill, as does a round in which a thread died: that thread may have been the
only observer.
"""

import argparse
import contextlib
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from benchmarks.reporting import write_json
from benchmarks.work_folders import work_folder
from chaos.arguments import SEEDS, rerun_command, round_count, skew_s
from chaos.clients.history import Recorder
from chaos.drills.context import DrillContext
from chaos.errors import DrillError
from chaos.installations.cleanup import claim_folder
from chaos.installations.installation import Installation, run_installation
from chaos.installations.recording_upstream import RecordingUpstream, recording_upstream
from chaos.measures import ABORTED_ROUNDS, OTHER_DRILLS, Measure, report_content, summarise
from chaos.observations.triggers import install_triggers
from chaos.suites import DrillSpec, Suite
from chaos.verification.lifecycle import LifecycleChecker

FURTHER_TRIALS_S = 38 * 60.0
"""Later than this no drill starts a second round, which leaves the rest of an hour for first
rounds."""


Check = Callable[[], Iterable[Measure]]


@dataclass(frozen=True, slots=True)
class Round:
    """A drill's name, the promises that it tests, its seed, and the command that repeats it."""

    part: str
    promises: Set[str]
    seed: int
    rerun: str


@dataclass(frozen=True, slots=True)
class Run:
    """The options of a run and the measures so far."""

    options: argparse.Namespace
    note: Callable[[str], None]
    measures: list[Measure] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)
    facts: Mapping[str, object] = field(default_factory=dict)  # of the machine and the command
    started_s: float = field(default_factory=time.monotonic)

    def is_late(self) -> bool:
        """Return whether drills start no further round; every first round runs in any case."""
        return time.monotonic() - self.started_s > FURTHER_TRIALS_S

    def record_untried(self, what: str, reason: object) -> None:
        """Record a drill or measure that could not be tested."""
        self.untried.append(f"{what}: {reason}")
        self.note(f"NOT TRIED {self.untried[-1]}")

    def add_measures(self, measures: Sequence[Measure]) -> None:
        """Add the measures of a round; one without evidence counts as untested."""
        for measure in measures:
            if not measure.has_evidence:
                what = f"{measure.promise} {measure.what} in {measure.part}, seed {measure.seed}"
                self.record_untried(what, f"there was no evidence; {measure.rerun}")
        tried = [measure for measure in measures if measure.has_evidence]
        self.measures.extend(tried)
        for found in summarise(tried):
            no_target = "missed" if found.relation == "goal" else "BROKEN"
            mark = no_target if found.failures else "ok    "
            self.note(
                f"  {mark} {found.promise} {found.what}: {found.worst:g}, {found.size} checked"
            )

    def write(self) -> None:
        """Write the report so far, so that an interrupted run keeps its measures."""
        seconds = round(time.monotonic() - self.started_s)
        facts = {**self.facts, "seconds": seconds, "untried": self.untried}
        write_json(self.options.json, report_content(facts, self.measures))


def run_suite(run: Run, suite: Suite, drills: Sequence[DrillSpec]) -> None:
    """Run the drills of a suite on one installation and add their measures to the run.

    An error ends this suite only and is reported as untested.
    """
    name, options = f"chaos-{suite.name}", run.options
    with work_folder(name, parent=options.work, keep=options.keep, note=run.note) as work:
        if not options.keep:
            claim_folder(work)
        try:
            _run_drills(run, suite, drills, work)
        except DrillError as failure:
            run.record_untried(suite.name, failure)
        except Exception as failure:  # noqa: BLE001  the other suites can still run
            run.record_untried(suite.name, _describe_error(failure))
        finally:
            _keep_histories(work, options.json.parent / "chaos" / suite.name)
            run.write()


def _run_drills(run: Run, suite: Suite, drills: Sequence[DrillSpec], work: Path) -> None:
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(recording_upstream()) if suite.records_executions else None
        spec = suite.build_spec(work, upstream.url if upstream else "", skew_s(run.options))
        installation = stack.enter_context(run_installation(spec))
        run.note(f"{suite.name}: ready")
        install_triggers(installation.engine)
        lifecycle = LifecycleChecker(installation.engine)
        for drill in drills:
            rounds = round_count(drill, run.options)
            for number in range(rounds):
                if number and run.is_late():
                    run.note(f"{drill.name}: no further round, the time is up")
                    break
                run.note(f"{suite.name} {drill.name} {number + 1} of {rounds}")
                _run_round(run, installation, upstream, drill, number, lifecycle)


def _run_round(
    run: Run,
    installation: Installation,
    upstream: RecordingUpstream | None,
    drill: DrillSpec,
    number: int,
    lifecycle: LifecycleChecker,
) -> None:
    """Run one round of a drill, whose seed is the run's plus the number of the round."""
    work = installation.spec.data
    seed = (run.options.seed + number) % SEEDS
    with closing(Recorder(work / "histories" / f"{drill.name}-{number}.jsonl")) as recorder:
        context = DrillContext(
            installation=installation,
            recorder=recorder,
            seed=seed,
            long=run.options.long,
            work=work,
            note=run.note,
            upstream=upstream,
        )
        current = Round(drill.name, drill.promises, seed, rerun_command(drill, seed, run.options))
        measures = run_round(
            current, lambda: drill.run(context), lambda: lifecycle.check(recorder.operations())
        )
        run.add_measures(measures)
        run.write()


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
        reasons.append(_describe_error(failure))
    return found


@contextmanager
def _thread_failures(reasons: list[str]) -> Iterator[None]:
    """Append a reason for each thread that dies in the block."""
    before = threading.excepthook

    def note(death: threading.ExceptHookArgs) -> None:
        name = death.thread.name if death.thread else "a thread"
        reasons.append(f"{name} died: {_describe_error(death.exc_value or death.exc_type())}")

    threading.excepthook = note
    try:
        yield
    finally:
        threading.excepthook = before


def _describe_error(failure: BaseException) -> str:
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


def _keep_histories(work: Path, kept: Path) -> None:
    """Copy the histories to a folder next to the report."""
    shutil.rmtree(kept, ignore_errors=True)
    if (work / "histories").exists():
        shutil.copytree(work / "histories", kept)
