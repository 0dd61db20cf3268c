"""`python -m chaos`: break a real installation on purpose, and judge what it promised."""

import argparse
import contextlib
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.machine import OUTSIDE_SERVICES, describe
from chaos.drills.setting import Setting
from chaos.evidence import install_triggers
from chaos.failures import DrillError
from chaos.histories import Recorder
from chaos.installation import Installation, installed
from chaos.measures import Measure
from chaos.reporting import table, write_json
from chaos.scenes import SCENES, Part, Scene
from chaos.upstream import RecordingUpstream, recording_upstream
from topics.settings import CLIENT_LOG

SEEDS = 2**31
FURTHER_TRIALS_S = 40 * 60.0
"""What is left of an hour then is enough for the first trials of all that has not been tried."""


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; 1 when a promise was broken or could not be tried."""
    asked = parse(arguments)
    if named := [name for name in OUTSIDE_SERVICES if name in os.environ]:
        sys.stderr.write(f"unset {', '.join(named)}: drills need services that they may break\n")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children are stopped
    CLIENT_LOG.setLevel(logging.CRITICAL)  # brokers die here all the time
    note = notes(time.monotonic())
    note(f"seed {asked.seed}: repeat the plans with --seed {asked.seed}")
    facts = describe() | {"seed": asked.seed, "command": " ".join(["python -m chaos", *arguments])}
    run = Run(asked, note)
    for scene in SCENES:
        parts = [part for part in scene.parts if wanted(part, asked)]
        if parts:
            run_scene(run, scene, parts)
            facts |= {"seconds": round(time.monotonic() - run.began_s), "untried": run.untried}
            write_json(asked.json, facts, run.measures)
    sys.stdout.write(table(run.measures) + "\n")
    for reason in run.untried:
        sys.stdout.write(f"\nnot tried: {reason}\n")
    broken = [measure for measure in run.measures if measure.breaks_a_promise]
    for measure in broken:
        note(f"BROKEN {measure.promise} {measure.what}: {measure.value:g} {measure.evidence}")
    note(f"all numbers are in {asked.json}")
    return 1 if broken or run.untried else 0


@dataclass(frozen=True, slots=True)
class Run:
    """What was asked for, and what was found so far."""

    asked: argparse.Namespace
    note: Callable[[str], None]
    measures: list[Measure] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    def trials(self, part: Part) -> int:
        """Return how often a part runs."""
        return trials_of(part, self.asked)

    def is_late(self) -> bool:
        """Whether no part may begin a second trial any more; each has its first in any case."""
        return time.monotonic() - self.began_s > FURTHER_TRIALS_S

    def give_up(self, what: str, failure: DrillError) -> None:
        """Remember what could not be tried."""
        self.untried.append(f"{what}: {failure}")
        self.note(f"NOT TRIED {self.untried[-1]}")


def run_scene(run: Run, scene: Scene, parts: Sequence[Part]) -> None:
    """Run the trials of a scene on one installation; what it finds is added as it is found."""
    work = Path(tempfile.mkdtemp(prefix=f"millrace-chaos-{scene.name}-", dir=run.asked.work))
    work.chmod(0o755)  # the user that Postgres runs as must pass
    try:
        with contextlib.ExitStack() as stack:
            upstream = stack.enter_context(recording_upstream()) if scene.records else None
            shape = scene.shape(work, upstream.url if upstream else "", run.asked.seed)
            running = stack.enter_context(installed(shape))
            run.note(f"{scene.name}: ready")
            install_triggers(running.engine)
            for part in parts:
                for trial in range(run.trials(part)):
                    if trial and run.is_late():
                        run.note(f"{part.name}: no further trial, the time is up")
                        break
                    run.note(f"{scene.name} {part.name} {trial + 1} of {run.trials(part)}")
                    run_trial(run, running, upstream, part, trial)
    except DrillError as failure:
        run.give_up(scene.name, failure)
    finally:
        keep(work, run.asked, scene.name, run.note)


def run_trial(
    run: Run,
    running: Installation,
    upstream: RecordingUpstream | None,
    part: Part,
    trial: int,
) -> None:
    """Run one trial, whose seed follows from the run's."""
    work = running.shape.data
    recorder = Recorder(work / "histories" / f"{part.name}-{trial}.jsonl")
    setting = Setting(
        running=running,
        recorder=recorder,
        seed=(run.asked.seed + trial) % SEEDS,
        long=run.asked.long,
        work=work,
        note=run.note,
        upstream=upstream,
    )
    try:
        found = part.drill(setting)
    except DrillError as failure:
        run.give_up(f"{part.name} {trial + 1}, seed {setting.seed}", failure)
    else:
        run.measures.extend(found)
        show(found, run.note)
    finally:
        recorder.close()


def trials_of(part: Part, asked: argparse.Namespace) -> int:
    """Return how many trials of a part were asked for."""
    trials: int = asked.trials or (part.trials_long if asked.long else part.trials)
    return max(trials, 1) if asked.promise or asked.part else trials


def wanted(part: Part, asked: argparse.Namespace) -> bool:
    """Whether a part proves anything that was asked for."""
    names = set(asked.promise or part.promises)
    named = not asked.part or part.name in asked.part
    return named and trials_of(part, asked) > 0 and bool(names & part.promises)


def show(measures: Sequence[Measure], note: Callable[[str], None]) -> None:
    """Tell the numbers of one trial."""
    for measure in measures:
        mark = "BROKEN" if measure.breaks_a_promise else "ok    " if measure.passed else "missed"
        note(f"  {mark} {measure.promise} {measure.what}: {measure.value:g} of {measure.size}")


def keep(work: Path, asked: argparse.Namespace, name: str, note: Callable[[str], None]) -> None:
    """Move the histories beside the report, and remove the rest unless it is to be kept."""
    histories = asked.json.parent / "chaos" / name
    shutil.rmtree(histories, ignore_errors=True)
    if (work / "histories").exists():
        shutil.copytree(work / "histories", histories)
    if asked.keep:
        note(f"kept {work}")
    else:
        shutil.rmtree(work, ignore_errors=True)


def notes(began_s: float) -> Callable[[str], None]:
    """Return what tells the reader how far a run is."""

    def note(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began_s:7.1f} s  {text}\n")
        sys.stderr.flush()

    return note


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what the command line asks for."""
    known = sorted({name for scene in SCENES for part in scene.parts for name in part.promises})
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(SEEDS))
    parser.add_argument("--promise", action="append", choices=known, help="only what proves it")
    parts = [part.name for scene in SCENES for part in scene.parts]
    parser.add_argument("--part", action="append", choices=parts, help="only this drill")
    parser.add_argument("--trials", type=int, help="of each part, in place of its own number")
    parser.add_argument("--long", action="store_true", help="many trials, under an hour")
    parser.add_argument("--json", type=Path, default=Path("out/chaos.json"))
    parser.add_argument("--work", type=Path, help="where installations keep their data meanwhile")
    parser.add_argument("--keep", action="store_true", help="do not remove that data")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
