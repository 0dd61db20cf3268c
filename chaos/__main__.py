"""`python -m chaos`: inject faults into a running installation and check its promises."""

import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.reporting import progress_printer
from chaos.arguments import is_selected, parse
from chaos.installations.cleanup import raise_on_signals, remove_stale_folders
from chaos.measures import table, violation_lines
from chaos.runs import Run, run_suite
from chaos.suites import SUITES
from cli.stack.processes.role_children import external_service_variables
from topics.settings import CLIENT_LOG


def main(arguments: Sequence[str]) -> int:
    """Run the selected drills; return 1 for a broken or untested promise, 2 when none can run."""
    options = parse(arguments)
    if named := external_service_variables(os.environ):
        sys.stderr.write(
            f"unset {named}: drills run on services of their own, which they may break\n"
        )
        return 2
    selected = [
        (suite, drills)
        for suite in SUITES
        if (drills := [drill for drill in suite.drills if is_selected(drill, options)])
    ]
    if not selected:
        sys.stderr.write(
            "no drill named by --part tests a promise named by --promise; see --help\n"
        )
        return 2
    raise_on_signals()
    CLIENT_LOG.setLevel(logging.CRITICAL)  # drills kill brokers: connection errors are expected
    note = progress_printer()
    remove_stale_folders(options.work or Path(tempfile.gettempdir()), note)
    note(f"seed {options.seed}: repeat the plans with --seed {options.seed}")
    facts = describe() | {
        "seed": options.seed,
        "command": " ".join(["python -m chaos", *arguments]),
    }
    run = Run(options, note, facts=facts)
    for suite, drills in selected:
        run_suite(run, suite, drills)
    sys.stdout.write(table(run.measures) + "\n")
    for reason in run.untried:
        sys.stdout.write(f"\nnot tried: {reason}\n")
    violations = violation_lines(run.measures)
    for line in violations:
        note(line)
    note(f"all numbers are in {options.json}")
    return 1 if violations or run.untried else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
