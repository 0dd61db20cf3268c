"""`python -m chaos`: break a real installation on purpose, and judge what it promised."""

import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.machine import describe
from chaos.arguments import parse, wanted
from chaos.installations.stale_folders import remove_stale_folders
from chaos.reports.report import table, violation_lines
from chaos.runs import Run, run_suite
from chaos.signals import raise_on_signals
from chaos.suites import SUITES
from cli.stack.services.outside_services import named_services
from topics.settings import CLIENT_LOG


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; 1 when a promise was broken or not tried, 2 when nothing can run."""
    asked = parse(arguments)
    if named := named_services(os.environ):
        sys.stderr.write(f"unset {named}: drills need services that they may break\n")
        return 2
    chosen = [
        (suite, parts)
        for suite in SUITES
        if (parts := [part for part in suite.parts if wanted(part, asked)])
    ]
    if not chosen:
        sys.stderr.write("no drill named by --part tries what --promise names; see --help\n")
        return 2
    raise_on_signals()
    CLIENT_LOG.setLevel(logging.CRITICAL)  # brokers die here all the time
    note = notes(time.monotonic())
    remove_stale_folders(asked.work or Path(tempfile.gettempdir()), note)
    note(f"seed {asked.seed}: repeat the plans with --seed {asked.seed}")
    facts = describe() | {"seed": asked.seed, "command": " ".join(["python -m chaos", *arguments])}
    run = Run(asked, note, facts=facts)
    for suite, parts in chosen:
        run_suite(run, suite, parts)
    sys.stdout.write(table(run.measures) + "\n")
    for reason in run.untried:
        sys.stdout.write(f"\nnot tried: {reason}\n")
    broken = violation_lines(run.measures)
    for line in broken:
        note(line)
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
