"""Resident memory of every role at 10 k, 100 k and 1 M items; it must not grow with the job.

What: the peak resident memory of each role during one job, sampled every 0.5 s; of pages that the
processes of a role share (Postgres) the largest process counts once.

How: a fresh stack for each size. `idle` is the reading before the job. The upload is included,
since the API receives it.

Goal: no role grows with the job; intake below 300 MiB at 1 M items.
"""

from collections.abc import Mapping

from benchmarks.data.input_files import chat_file
from benchmarks.runs import Report, Row, Run, Setup
from benchmarks.stacks.stack import running_stack
from benchmarks.stacks.stack_jobs import upload_job
from benchmarks.statistics.cpu import peak_memory, resident_by_role

SIZES, QUICK_SIZES = (10_000, 100_000, 1_000_000), (1_000, 5_000)
MODEL = "simulated"
MIB = 1024 * 1024
GOALS = {"intake": "< 300 MiB at 1 M items"}


def measure(setup: Setup) -> Report:
    """Run the benchmark; `--items` replaces the largest size. Raises VoidRunError."""
    sizes: tuple[int, ...] = QUICK_SIZES if setup.quick else SIZES
    if setup.items is not None:
        sizes = (*(size for size in sizes if size < setup.items), setup.items)
    peaks: dict[int, Mapping[str, int]] = {}
    runs: list[Run] = []
    for size in sizes:
        run, peaks[size] = _measure(setup, size)
        runs.append(run)
        listing = ", ".join(f"{role} {b // MIB}" for role, b in sorted(peaks[size].items()))
        setup.note(f"{size:,} items, MiB: {listing}")
    smallest = sizes[0]
    rows = [
        Row(
            metric=f"{role} at {size:,} items",
            unit="MiB",
            ours=peaks[size][role] / MIB,
            peer=peaks[smallest][role] / MIB if size != smallest else None,
            goal=GOALS.get(role, "flat") if size == sizes[-1] else "",
        )
        for role in sorted(peaks[smallest])
        for size in sizes
    ]
    return Report(name="memory", rows=rows, runs=runs)


def _measure(setup: Setup, items: int) -> tuple[Run, Mapping[str, int]]:
    file = chat_file(setup.work / "input.jsonl", items, model=MODEL)
    with running_stack(setup.work / f"stack-{items}") as stack:
        roles = stack.roles()
        idle = resident_by_role(roles)
        with peak_memory(roles) as peak:
            run = upload_job(stack, file, setup.work / "output.jsonl").run()
    facts = {f"idle_mib:{role}": resident / MIB for role, resident in idle.items()}
    facts |= {f"peak_mib:{role}": resident / MIB for role, resident in peak.items()}
    return Run(items=items, seconds=run.seconds, cpu_s=run.cpu_s, facts=facts), peak
