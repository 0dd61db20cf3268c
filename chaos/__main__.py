"""`python -m chaos`: break a real installation on purpose, and judge what it promised."""

import argparse
import contextlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.machine import OUTSIDE_SERVICES, describe
from chaos.drills.setting import Setting
from chaos.evidence import install_triggers
from chaos.histories import Recorder
from chaos.hosts import DrillError
from chaos.installation import Installation, installed
from chaos.measures import Measure
from chaos.reporting import table, write_json
from chaos.scenes import SCENES, Part, Scene
from chaos.upstream import RecordingUpstream, recording_upstream

SEEDS = 2**31


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; 1 when a promise was broken or could not be tried."""
    asked = parse(arguments)
    if named := [name for name in OUTSIDE_SERVICES if name in os.environ]:
        sys.stderr.write(f"unset {', '.join(named)}: drills need services that they may break\n")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children are stopped
    note = notes(time.monotonic())
    note(f"seed {asked.seed}: repeat the plans with --seed {asked.seed}")
    facts = describe() | {"seed": asked.seed, "command": " ".join(["python -m chaos", *arguments])}
    began_s = time.monotonic()
    measures: list[Measure] = []
    untried: list[str] = []
    for scene in SCENES:
        parts = [part for part in scene.parts if wanted(part, asked)]
        if parts:
            run_scene(scene, parts, asked, measures, untried, note)
            facts |= {"seconds": round(time.monotonic() - began_s), "untried": untried}
            write_json(asked.json, facts, measures)
    sys.stdout.write(table(measures) + "\n")
    for reason in untried:
        sys.stdout.write(f"\nnot tried: {reason}\n")
    broken = [measure for measure in measures if not measure.passed]
    for measure in broken:
        note(f"BROKEN {measure.promise} {measure.what}: {measure.value:g} {measure.evidence}")
    note(f"all numbers are in {asked.json}")
    return 1 if broken or untried else 0


def run_scene(
    scene: Scene,
    parts: Sequence[Part],
    asked: argparse.Namespace,
    measures: list[Measure],
    untried: list[str],
    note: Callable[[str], None],
) -> None:
    """Run the trials of a scene on one installation; what it finds is added as it is found."""
    work = Path(tempfile.mkdtemp(prefix=f"millrace-chaos-{scene.name}-", dir=asked.work))
    work.chmod(0o755)  # the user that Postgres runs as must pass
    try:
        with contextlib.ExitStack() as stack:
            upstream = stack.enter_context(recording_upstream()) if scene.records else None
            shape = scene.shape(work, upstream.url if upstream else "")
            running = stack.enter_context(installed(shape))
            note(f"{scene.name}: ready")
            install_triggers(running.engine)
            for part in parts:
                trials = asked.trials or (part.trials_long if asked.long else part.trials)
                for trial in range(trials):
                    name = f"{scene.name} {part.name} {trial + 1} of {trials}"
                    note(name)
                    try:
                        found = run_trial(running, upstream, part, asked, trial, note)
                    except DrillError as failure:
                        untried.append(f"{name}: {failure}")
                        note(untried[-1])
                    else:
                        measures += found
                        show(found, note)
    except DrillError as failure:
        untried.append(f"{scene.name}: {failure}")
        note(untried[-1])
    finally:
        keep(work, asked, scene.name, note)


def run_trial(
    running: Installation,
    upstream: RecordingUpstream | None,
    part: Part,
    asked: argparse.Namespace,
    trial: int,
    note: Callable[[str], None],
) -> list[Measure]:
    """Run one trial, whose seed follows from the run's. Raises DrillError."""
    work = running.shape.data
    recorder = Recorder(work / "histories" / f"{part.name}-{trial}.jsonl")
    setting = Setting(
        running=running,
        recorder=recorder,
        seed=(asked.seed + trial) % SEEDS,
        long=asked.long,
        work=work,
        note=note,
        upstream=upstream,
    )
    try:
        return part.drill(setting)
    finally:
        recorder.close()


def wanted(part: Part, asked: argparse.Namespace) -> bool:
    """Whether a part proves anything that was asked for."""
    trials = asked.trials or (part.trials_long if asked.long else part.trials)
    names = set(asked.promise or part.promises)
    return bool(trials) and bool(names & part.promises)


def show(measures: Sequence[Measure], note: Callable[[str], None]) -> None:
    """Tell the numbers of one trial."""
    for measure in measures:
        mark = "ok    " if measure.passed else "BROKEN"
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
    parser.add_argument("--trials", type=int, help="of each part, in place of its own number")
    parser.add_argument("--long", action="store_true", help="many trials, under an hour")
    parser.add_argument("--json", type=Path, default=Path("out/chaos.json"))
    parser.add_argument("--work", type=Path, help="where installations keep their data meanwhile")
    parser.add_argument("--keep", action="store_true", help="do not remove that data")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
