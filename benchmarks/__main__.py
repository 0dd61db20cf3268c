"""`python -m benchmarks [names…]`: measure, print a table, write JSON."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import cast

from benchmarks.machine import describe
from benchmarks.reporting import table, write_json
from benchmarks.runs import Benchmark, Report, Setup, VoidRunError
from benchmarks.work_folders import work_folder
from cli.stack.services.outside_services import named_services

NAMES = (
    "bulk_control_plane",
    "floor_fraction",
    "http_engine",
    "memory",
    "result_sink",
    "faust_tax",
    "engine_saturation",
    "sync_overhead",
    "online_rate",
    "first_token",
    "online_during_bulk",
)
"""Modules of `benchmarks.measurements`, in the order in which they run."""

PAIRS, QUICK_PAIRS = 7, 1


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; 1 when a benchmark could not be measured."""
    asked = parse(arguments)
    # Where the CPU of services could not be read.
    if named := named_services(os.environ):
        sys.stderr.write(f"unset {named}: the services must be children of ours\n")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children are stopped
    machine = describe()
    reports, failed = [], []
    for name in asked.names or NAMES:
        note = notes(name)
        try:
            with work_folder(name, parent=asked.work, keep=asked.keep, note=note) as work:
                reports.append(run(name, asked, work, note))
        except VoidRunError as void:
            failed.append(name)
            note(f"given up: {void}")
        write_json(asked.json, {**machine, "not_measured": failed}, reports)
    sys.stdout.write(table(reports) + "\n")
    sys.stderr.write(f"every sample is in {asked.json}\n")
    return 1 if failed else 0


def run(name: str, asked: argparse.Namespace, work: Path, note: Callable[[str], None]) -> Report:
    """Run one benchmark. Raises VoidRunError."""
    pairs = asked.pairs or (QUICK_PAIRS if asked.quick else PAIRS)
    setup = Setup(work=work, pairs=pairs, items=asked.items, quick=asked.quick, note=note)
    measure = cast("Benchmark", import_module(f"benchmarks.measurements.{name}").measure)
    return measure(setup)


def notes(name: str) -> Callable[[str], None]:
    """Return what tells the reader how far a benchmark is."""
    began_s = time.monotonic()

    def note(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began_s:7.1f} s  {name}: {text}\n")

    return note


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of: {', '.join(NAMES)}")
    parser.add_argument("--pairs", type=int, help=f"pairs that count; default {PAIRS}")
    parser.add_argument("--items", type=int, help="items of a run, in place of each default")
    parser.add_argument("--json", type=Path, default=Path("out/bench.json"))
    parser.add_argument("--quick", action="store_true", help="small counts: does it run at all?")
    parser.add_argument("--work", type=Path, help="where stacks keep their data meanwhile")
    parser.add_argument("--keep", action="store_true", help="do not remove that data")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.names) - set(NAMES):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    return asked


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
