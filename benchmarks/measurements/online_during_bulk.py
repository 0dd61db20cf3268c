"""Latency of online calls while a large bulk job runs.

What: latency of unary calls (1 client, simulated engine at 5 ms) during a job that uses half of the
machine's CPU, over the latency of the same calls without it.

How: the engine's concurrency limits the job. A first job on 100 slots, 90 of them for bulk, shows
how many slots take half of the CPU: up to 18,000 items a second. The broker is warm. Each round
measures calls alone, then during the job; the first is dropped. CPU is that of every process of the
stack, for calls and items together; that of the job alone is reported as well.

Goal: p50 at most 1.25 × alone.
"""

import os
import time
from dataclasses import replace

from openai.types import Batch

from benchmarks.data.input_files import chat_file
from benchmarks.runs import Report, Row, Run, Setup, VoidRunError
from benchmarks.stacks.load_runs import chat_task, percentiles_ms, run_measured, warm_up
from benchmarks.stacks.stack import RunningStack, running_stack
from benchmarks.stacks.stack_jobs import JobsClient
from benchmarks.statistics.cpu import cpu_by_role, cpu_used
from benchmarks.statistics.pairing import fact, paired_row, run_pairs

ITEMS, QUICK_ITEMS = 1_000_000, 20_000
CALLS, QUICK_CALLS = 500, 50
CLIENTS = 1
MODEL = "simulated"
PAIRS_MAX = 3
PERCENTS = (50, 99)
SLOTS_MAX, SLOTS_MIN = 100, 4
PACE_S, QUICK_PACE_S = 8.0, 1.0


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    file = chat_file(setup.work / "input.jsonl", setup.count(ITEMS, QUICK_ITEMS), model=MODEL)
    data = setup.work / "stack"
    with running_stack(data, *_options(SLOTS_MAX)) as stack:
        client = JobsClient(stack.server)
        file_id, _ = client.upload(file.path)
        cores = _cores_of_job(setup, stack, client, file_id)
    slots = slots_for_cores(cores, (os.cpu_count() or 1) / 2)
    setup.note(f"a job on {SLOTS_MAX} places takes {cores:.2f} cores: it gets {slots}")
    with running_stack(data, *_options(slots)) as stack:
        client = JobsClient(stack.server)
        cores = _cores_of_job(setup, stack, client, file_id)
        warm_up(setup, stack.server, MODEL)
        pairs, voids = run_pairs(
            lambda: _run_with_job(setup, stack, client, file_id),
            lambda: _run_calls(setup, stack),
            replace(setup, pairs=min(setup.pairs, PAIRS_MAX)),
        )
    rows = [
        paired_row(
            f"p{percent}",
            "ms",
            pairs,
            fact(f"p{percent}_ms"),
            goal="ratio ≤ 1.25" if percent == PERCENTS[0] else "",
        )
        for percent in PERCENTS
    ]
    rows.append(paired_row("CPU of the stack", "cores", pairs, fact("cores")))
    rows.append(Row(metric="CPU of the job alone", unit="cores", ours=cores))
    return Report(name="online_during_bulk", rows=rows, pairs=pairs, voids=voids)


def slots_for_cores(cores: float, target_cores: float) -> int:
    """Return the slots on which a job takes the target cores, if it takes `cores` on all of them.

    The result is at most `SLOTS_MAX`.
    """
    slots = round(SLOTS_MAX * target_cores / max(cores, 1e-9))
    return min(SLOTS_MAX, max(SLOTS_MIN, slots))


def _options(slots: int) -> tuple[str, ...]:
    return ("--simulated-latency-ms", "5", "--simulated-concurrency", str(slots))


def _cores_of_job(setup: Setup, stack: RunningStack, client: JobsClient, file_id: str) -> float:
    """Run a job for a while and return the cores that the whole stack used."""
    job = client.start(file_id)
    client.wait(job, lambda batch: _done(batch) > 0)
    roles, started_s = stack.roles(), time.monotonic()
    before = cpu_by_role(roles)
    time.sleep(QUICK_PACE_S if setup.quick else PACE_S)
    used, seconds = cpu_used(before, cpu_by_role(roles)), time.monotonic() - started_s
    client.cancel(job)
    return sum(used.values()) / seconds


def _run_with_job(setup: Setup, stack: RunningStack, client: JobsClient, file_id: str) -> Run:
    """Measure calls during a job and cancel it; a job that ends early voids the run."""
    job = client.start(file_id)
    client.wait(job, lambda batch: _done(batch) > 0)
    run = _run_calls(setup, stack)
    if client.cancel(job).status != "cancelled":
        raise VoidRunError("the job ended before the calls did")
    return run


def _run_calls(setup: Setup, stack: RunningStack) -> Run:
    calls = QUICK_CALLS if setup.quick else CALLS
    task = chat_task(stack.server, MODEL, clients=CLIENTS, calls=calls)
    found, used = run_measured(task, setup.work, stack.roles())
    facts = percentiles_ms(found.latencies_s, PERCENTS)
    facts["cores"] = sum(used.values()) / found.seconds
    return Run(items=calls, seconds=found.seconds, cpu_s=used, facts=facts)


def _done(batch: Batch) -> int:
    return batch.request_counts.completed if batch.request_counts else 0
