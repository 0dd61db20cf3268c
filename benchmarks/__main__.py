"""`python -m benchmarks [names…]`: run benchmarks, print a table and write JSON."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import cast

from benchmarks.machine import describe
from benchmarks.reporting import progress_printer, table, write_json
from benchmarks.runs import Benchmark, Report, Setup, VoidRunError
from benchmarks.stacks.stack import PYTHON
from benchmarks.work_folders import work_folder
from cli.stack.processes.role_children import external_service_variables

NAMES = (
    "bulk_control_plane",
    "floor_fraction",
    "http_engine",
    "memory",
    "control_start",
    "result_sink",
    "faust_tax",
    "engine_saturation",
    "sync_overhead",
    "online_rate",
    "first_token",
    "online_during_bulk",
    "open_jobs",
    "call_admission",
    "deadline_plans",
    "newcomers",
    "tenant_shares",
    "capacity_readers",
    "fair_gap",
    "small_beside_large",
    "harvest",
    "overload_goodput",
    "virtual_scheduling",
    "virtual_harvest",
    "prefix_order",
    "upstream_turnaround",
    "one_writer",
    "scaling_live",
    "scaling_step",
    "scaling_wake",
)
"""Modules of `benchmarks.measurements`, in the order in which they run."""

COMPARISONS = ("other_checkout",)
"""Modules that run only when they are named: they need `--checkout`."""

ALIASES = {"beside_bulk": "online_during_bulk"}
"""Earlier names of benchmarks."""

PAIRS, QUICK_PAIRS = 7, 1


def main(arguments: Sequence[str]) -> int:
    """Run the selected benchmarks; return 1 when one cannot be measured."""
    options = parse(arguments)
    # The CPU of services is read from child processes.
    if named := external_service_variables(os.environ):
        sys.stderr.write(f"unset {named}: benchmarks run services as child processes\n")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops child processes
    machine = describe(other=options.checkout)
    reports, failed = [], []
    for name in options.names or NAMES:
        note = progress_printer(f"{name}: ")
        try:
            with work_folder(name, parent=options.work, keep=options.keep, note=note) as work:
                reports.append(run(name, options, work, note))
        except VoidRunError as void:
            failed.append(name)
            note(f"not measured: {void}")
        write_json(options.json, {**machine, "not_measured": failed, "reports": reports})
    sys.stdout.write(table(reports) + "\n")
    sys.stderr.write(f"every sample is in {options.json}\n")
    return 1 if failed else 0


def run(name: str, options: argparse.Namespace, work: Path, note: Callable[[str], None]) -> Report:
    """Run one benchmark. Raises VoidRunError."""
    pairs = options.pairs or (QUICK_PAIRS if options.quick else PAIRS)
    setup = Setup(
        work=work,
        pairs=pairs,
        items=options.items,
        quick=options.quick,
        note=note,
        seconds=options.seconds,
        checkout=options.checkout,
    )
    measure = cast("Benchmark", import_module(f"benchmarks.measurements.{name}").measure)
    return measure(setup)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = (*NAMES, *COMPARISONS)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of: {', '.join(known)}")
    parser.add_argument("--pairs", type=int, help=f"pairs that count; default {PAIRS}")
    parser.add_argument("--items", type=int, help="items of a run; replaces each default")
    parser.add_argument("--seconds", type=float, help="length of a trace; replaces its default")
    parser.add_argument(
        "--checkout", type=Path, help="another checkout after `make setup`, to compare with"
    )
    parser.add_argument("--json", type=Path, default=Path("out/bench.json"))
    parser.add_argument("--quick", action="store_true", help="small counts: a smoke test")
    parser.add_argument("--work", type=Path, help="where stacks keep their data meanwhile")
    parser.add_argument("--keep", action="store_true", help="do not remove that data")
    options = parser.parse_args(arguments)
    options.names = [ALIASES.get(name, name) for name in options.names]
    if unknown := set(options.names) - set(known):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    comparisons = sorted(set(options.names) & set(COMPARISONS))
    if options.checkout is None and comparisons:
        parser.error(f"{', '.join(comparisons)} needs --checkout")
    if options.checkout is not None:
        if not comparisons:
            parser.error(f"only {', '.join(COMPARISONS)} compares with --checkout")
        options.checkout = options.checkout.resolve()
        if not (options.checkout / PYTHON).exists():
            parser.error(f"{options.checkout} has no {PYTHON}: run `make setup` there")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
