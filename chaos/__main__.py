"""`python -m chaos`: break a real installation on purpose, and judge what it promised."""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks.machine import OUTSIDE_SERVICES, describe
from chaos.asking import parse, wanted
from chaos.reporting import table, write_json
from chaos.runs import Run, run_scene
from chaos.scenes import SCENES
from topics.settings import CLIENT_LOG


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


def notes(began_s: float) -> Callable[[str], None]:
    """Return what tells the reader how far a run is."""

    def note(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began_s:7.1f} s  {text}\n")
        sys.stderr.flush()

    return note


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
