"""Runs: the rounds of every drill that was asked for, each scene on an installation of its own."""

import argparse
import contextlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.work_folders import work_folder
from chaos.arguments import SEEDS, rerun, skew_s, trials_of
from chaos.clients.history import Recorder
from chaos.drills.context import DrillContext
from chaos.errors import DrillError
from chaos.installations.installation import Installation, run_installation
from chaos.installations.recording_upstream import RecordingUpstream, recording_upstream
from chaos.installations.stale_folders import claim
from chaos.observations.database import install_triggers
from chaos.reports.measures import Measure, summarise
from chaos.reports.report import write_json
from chaos.rounds import Round, run_round, told
from chaos.suites import DrillSpec, Suite
from chaos.verification.lifecycle import LifecycleChecker

FURTHER_TRIALS_S = 38 * 60.0
"""What is left of an hour then is enough for the first trials of all that has not been tried."""


@dataclass(frozen=True, slots=True)
class Run:
    """What was asked for, and what was found so far."""

    asked: argparse.Namespace
    note: Callable[[str], None]
    measures: list[Measure] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)
    facts: Mapping[str, object] = field(default_factory=dict)  # of the machine and the command
    began_s: float = field(default_factory=time.monotonic)

    def trials(self, part: DrillSpec) -> int:
        """Return how often a part runs."""
        return trials_of(part, self.asked)

    def is_late(self) -> bool:
        """Whether no part may begin a second trial any more; each has its first in any case."""
        return time.monotonic() - self.began_s > FURTHER_TRIALS_S

    def record_untried(self, what: str, reason: object) -> None:
        """Remember what could not be tried."""
        self.untried.append(f"{what}: {reason}")
        self.note(f"NOT TRIED {self.untried[-1]}")

    def add(self, found: Sequence[Measure]) -> None:
        """Add what a round found; what looked at nothing was not tried."""
        for measure in found:
            if not measure.has_evidence:
                what = f"{measure.promise} {measure.what} in {measure.part}, seed {measure.seed}"
                self.record_untried(what, f"there was nothing to look at; {measure.rerun}")
        tried = [measure for measure in found if measure.has_evidence]
        self.measures.extend(tried)
        _show(tried, self.note)

    def write(self) -> None:
        """Write all that was found so far, for whoever ends the run before its end."""
        facts = {
            **self.facts,
            "seconds": round(time.monotonic() - self.began_s),
            "untried": self.untried,
        }
        write_json(self.asked.json, facts, self.measures)


def run_suite(run: Run, suite: Suite, parts: Sequence[DrillSpec]) -> None:
    """Run the trials of a scene on one installation; what it finds is added as it is found.

    Whatever breaks it off is told as not tried, and the scenes that follow are still run.
    """
    name, asked = f"chaos-{suite.name}", run.asked
    with work_folder(name, parent=asked.work, keep=asked.keep, note=run.note) as work:
        if not asked.keep:
            claim(work)
        try:
            _run_parts(run, suite, parts, work)
        except DrillError as failure:
            run.record_untried(suite.name, failure)
        except Exception as failure:  # noqa: BLE001  the other scenes can still tell something
            run.record_untried(suite.name, told(failure))
        finally:
            _keep_histories(work, asked.json.parent / "chaos" / suite.name)
            run.write()


def _run_parts(run: Run, suite: Suite, parts: Sequence[DrillSpec], work: Path) -> None:
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(recording_upstream()) if suite.records else None
        spec = suite.spec(work, upstream.url if upstream else "", skew_s(run.asked))
        installation = stack.enter_context(run_installation(spec))
        run.note(f"{suite.name}: ready")
        install_triggers(installation.engine)
        lives = LifecycleChecker(installation.engine)
        for part in parts:
            for trial in range(run.trials(part)):
                if trial and run.is_late():
                    run.note(f"{part.name}: no further trial, the time is up")
                    break
                run.note(f"{suite.name} {part.name} {trial + 1} of {run.trials(part)}")
                _run_trial(run, installation, upstream, part, trial, lives)


def _run_trial(
    run: Run,
    installation: Installation,
    upstream: RecordingUpstream | None,
    part: DrillSpec,
    trial: int,
    lives: LifecycleChecker,
) -> None:
    """Run one trial, whose seed follows from the run's."""
    work = installation.spec.data
    seed = (run.asked.seed + trial) % SEEDS
    recorder = Recorder(work / "histories" / f"{part.name}-{trial}.jsonl")
    context = DrillContext(
        installation=installation,
        recorder=recorder,
        seed=seed,
        long=run.asked.long,
        work=work,
        note=run.note,
        upstream=upstream,
    )
    one = Round(part.name, part.promises, seed, rerun(part, seed, run.asked))
    try:
        run.add(
            run_round(one, lambda: part.drill(context), lambda: lives.judge(recorder.operations()))
        )
        run.write()
    finally:
        recorder.close()


def _show(measures: Sequence[Measure], note: Callable[[str], None]) -> None:
    for found in summarise(measures):
        no_target = "missed" if found.relation == "goal" else "BROKEN"
        mark = no_target if found.failures else "ok    "
        note(f"  {mark} {found.promise} {found.what}: {found.worst:g}, looked at {found.size}")


def _keep_histories(work: Path, kept: Path) -> None:
    """Lay the histories beside the report."""
    shutil.rmtree(kept, ignore_errors=True)
    if (work / "histories").exists():
        shutil.copytree(work / "histories", kept)
