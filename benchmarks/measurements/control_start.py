"""A start that reads a long topic `control`: time, CPU and memory until the reader has its end.

What: `topics.tail_readers.job_controls.JobControlReader.start`, as batchers and replicas call it,
on records of different jobs, each a second closed, the others paused.

How: a broker of its own; each run is a process of its own. The broker answers from its page cache.
No part of the start but this reader is measured; `before` is the process's memory without it.

Goal: at most 60 s and 500 MiB at 10 M records, of which the newest 3.5 M offsets are read.
"""

from functools import partial
from pathlib import Path

from benchmarks.children.line_child import run_child
from benchmarks.data.control_topic import fill_control
from benchmarks.runs import Report, Row, Run, Setup, VoidRunError
from benchmarks.stacks.services import running_kafka

RECORDS, QUICK_RECORDS = 10_000_000, 50_000
READ_S_MAX = 1800.0
MIB = 1024 * 1024


def measure(setup: Setup) -> Report:
    """Run the benchmark; `--items` is the number of records. Raises VoidRunError."""
    count = setup.count(RECORDS, QUICK_RECORDS)
    with running_kafka(setup.work) as kafka:
        setup.note(f"{count:,} records")
        fill_control(kafka.address, count)
        read = partial(_read, kafka.address, count, setup.work)
        runs = [read(), read()]
    best = min(runs, key=lambda run: run.seconds)
    rows = [
        Row(metric="start", unit="s", ours=best.seconds, goal="≤ 60 s at 10 M"),
        Row(metric="start", unit="µs/record", ours=best.seconds / count * 1e6, goal="≤ 6"),
        Row(metric="start", unit="µs CPU/record", ours=best.cpu_us),
        Row(
            metric="peak memory",
            unit="MiB",
            ours=best.facts["peak_mib"],
            goal="≤ 500 at 10 M",
        ),
        Row(metric="memory before", unit="MiB", ours=best.facts["before_mib"]),
    ]
    return Report(name="control_start", rows=rows, runs=runs)


def _read(servers: str, count: int, folder: Path) -> Run:
    module = "benchmarks.children.control_reader"
    found = run_child("reader", module, [servers], folder, READ_S_MAX)
    if not found["known"]:
        raise VoidRunError("no state was read")
    facts = {name: found[f"{name}_bytes"] / MIB for name in ("peak", "before")}
    return Run(
        items=count,
        seconds=found["seconds"],
        cpu_s={"reader": found["cpu_s"]},
        facts={f"{name}_mib": mib for name, mib in facts.items()} | {"known": found["known"]},
    )
