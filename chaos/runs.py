"""A run: the rounds of every selected drill, each suite on an installation of its own."""

import argparse
import contextlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.reporting import write_json
from benchmarks.work_folders import work_folder
from chaos.arguments import SEEDS, rerun_command, round_count, skew_s
from chaos.clients.history import Recorder
from chaos.drills.context import DrillContext
from chaos.errors import DrillError
from chaos.installations.cleanup import claim_folder
from chaos.installations.installation import Installation, run_installation
from chaos.installations.recording_upstream import RecordingUpstream, recording_upstream
from chaos.observations.triggers import install_triggers
from chaos.reports.measures import Measure, summarise
from chaos.reports.report import report_content
from chaos.rounds import Round, describe_error, run_round
from chaos.suites import DrillSpec, Suite
from chaos.verification.lifecycle import LifecycleChecker

FURTHER_TRIALS_S = 38 * 60.0
"""Later than this no drill starts a second round, which leaves the rest of an hour for first
rounds.
"""


@dataclass(frozen=True, slots=True)
class Run:
    """The options of a run and the measures so far."""

    options: argparse.Namespace
    note: Callable[[str], None]
    measures: list[Measure] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)
    facts: Mapping[str, object] = field(default_factory=dict)  # of the machine and the command
    started_s: float = field(default_factory=time.monotonic)

    def rounds(self, drill: DrillSpec) -> int:
        """Return how many rounds of a drill to run."""
        return round_count(drill, self.options)

    def is_late(self) -> bool:
        """Return whether drills start no further round; every first round runs in any case."""
        return time.monotonic() - self.started_s > FURTHER_TRIALS_S

    def record_untried(self, what: str, reason: object) -> None:
        """Record a drill or measure that could not be tested."""
        self.untried.append(f"{what}: {reason}")
        self.note(f"NOT TRIED {self.untried[-1]}")

    def add_measures(self, found: Sequence[Measure]) -> None:
        """Add the measures of a round; one without evidence counts as untested."""
        for measure in found:
            if not measure.has_evidence:
                what = f"{measure.promise} {measure.what} in {measure.part}, seed {measure.seed}"
                self.record_untried(what, f"there was no evidence; {measure.rerun}")
        tried = [measure for measure in found if measure.has_evidence]
        self.measures.extend(tried)
        _print_measures(tried, self.note)

    def write(self) -> None:
        """Write the report so far, so that an interrupted run keeps its measures."""
        facts = {
            **self.facts,
            "seconds": round(time.monotonic() - self.started_s),
            "untried": self.untried,
        }
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
            run.record_untried(suite.name, describe_error(failure))
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
            for number in range(run.rounds(drill)):
                if number and run.is_late():
                    run.note(f"{drill.name}: no further round, the time is up")
                    break
                run.note(f"{suite.name} {drill.name} {number + 1} of {run.rounds(drill)}")
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
    recorder = Recorder(work / "histories" / f"{drill.name}-{number}.jsonl")
    context = DrillContext(
        installation=installation,
        recorder=recorder,
        seed=seed,
        long=run.options.long,
        work=work,
        note=run.note,
        upstream=upstream,
    )
    command = rerun_command(drill, seed, run.options)
    current = Round(drill.name, drill.promises, seed, command)
    try:
        measures = run_round(
            current, lambda: drill.run(context), lambda: lifecycle.check(recorder.operations())
        )
        run.add_measures(measures)
        run.write()
    finally:
        recorder.close()


def _print_measures(measures: Sequence[Measure], note: Callable[[str], None]) -> None:
    for found in summarise(measures):
        no_target = "missed" if found.relation == "goal" else "BROKEN"
        mark = no_target if found.failures else "ok    "
        note(f"  {mark} {found.promise} {found.what}: {found.worst:g}, {found.size} checked")


def _keep_histories(work: Path, kept: Path) -> None:
    """Copy the histories to a folder next to the report."""
    shutil.rmtree(kept, ignore_errors=True)
    if (work / "histories").exists():
        shutil.copytree(work / "histories", kept)
