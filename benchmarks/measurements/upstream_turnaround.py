"""How long a bulk batch takes at an upstream whose latency varies by a factor of ten.

What: the engine `openai_http` calls an upstream for each item, 64 at once. Its latency changes
between 0.1 and 1 s every 10 s; then each call has one of its own between the two. A job of chat
items keeps the pool busy all the time. A batch is sized by the rate of its replica, which is then
wrong by up to a factor of ten.

How: the records of `batches.*` and `results` of the log. A batch takes from its record to that of
the last outcome of its items, by the clocks of batcher and replica, which are the same here. Every
batch counts, from the second change of the latency on.

Goal: a 95th percentile of 5 s.
"""

import time

from openai.types import Batch

from benchmarks.data.input_files import chat_file
from benchmarks.data.simulated_gpu import SimulatedGpu
from benchmarks.runs import Report, Row, Run, Setup, VoidRunError
from benchmarks.stacks.batch_turnarounds import Turnaround, batch_turnarounds
from benchmarks.stacks.load_runs import percentiles_ms
from benchmarks.stacks.scheduling_stack import SchedulingStack, scheduling_stack
from benchmarks.stacks.services import running_server
from cli.stack.served_models import served_models
from core.ids import JOB, parse_public_id

MODEL = "upstream"
LATENCY_MS, LATENCY_MS_MAX = 100, 1000
CONCURRENCY = 64
PERIODS_S = {"latency changes every 10 s": 10.0, "each call has its own": 0.0}
SECONDS, QUICK_SECONDS = 90.0, 25.0
ITEMS = 60_000  # more than 64 calls can do at 0.1 s
PERCENTS = (50, 95, 99)
BATCHES_MIN = 2
READY_S_MAX = 30.0
GOAL = "≤ 5"


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    rows: list[Row] = []
    runs: list[Run] = []
    for number, (name, period_s) in enumerate(PERIODS_S.items()):
        arguments = [MODEL, str(LATENCY_MS), str(LATENCY_MS_MAX), str(period_s)]
        with running_server(
            "upstream", arguments, setup.work / "logs", ready_s_max=READY_S_MAX
        ) as upstream:
            options = (
                *("--engine", "openai_http", "--upstream", upstream.address),
                *("--model", MODEL, "--concurrency", str(CONCURRENCY)),
            )
            folder = setup.work / f"stack-{number}"
            with scheduling_stack(folder, SimulatedGpu(), engine_options=options) as stack:
                (model,) = served_models([MODEL], "openai_http", upstream.address)
                run = _run(setup, stack, model.pool, period_s)
        setup.note(f"{name}: {run.facts}")
        runs.append(run)
        rows += _rows(name, run)
    return Report(name="upstream_turnaround", rows=rows, runs=runs)


def _run(setup: Setup, stack: SchedulingStack, pool: str, period_s: float) -> Run:
    file = chat_file(setup.work / "input.jsonl", setup.count(ITEMS, ITEMS), model=MODEL)
    client = stack.tenant()
    file_id, _ = client.upload(file.path)
    batch: Batch = client.start(file_id)
    stack.wait_for_rows([batch])
    since_s = time.time() + period_s
    seconds = QUICK_SECONDS if setup.quick else SECONDS
    time.sleep(period_s + seconds)
    client.cancel(batch)
    job_id = parse_public_id(JOB, batch.id)
    assert job_id is not None
    found = batch_turnarounds(stack.kafka, pool, [job_id])
    measured = [one for one in found if one.sent_s >= since_s]
    setup.note(f"{len(found)} batches, {len(measured)} measured")
    if len(measured) < BATCHES_MIN:
        raise VoidRunError("too few batches have ended")
    return _run_of(measured, seconds)


def _run_of(measured: list[Turnaround], seconds: float) -> Run:
    facts = percentiles_ms([one.seconds for one in measured], PERCENTS)
    facts |= {
        "longest_s": max(one.seconds for one in measured),
        "batches": len(measured),
        "items_mean": sum(one.items for one in measured) / len(measured),
    }
    items = sum(one.items for one in measured)
    return Run(items=max(1, items), seconds=seconds, cpu_s={}, facts=facts)


def _rows(name: str, run: Run) -> list[Row]:
    rows = [
        Row(
            metric=f"{name}: batch p{percent}",
            unit="s",
            ours=run.facts[f"p{percent}_ms"] / 1000,
            goal=GOAL if percent == PERCENTS[1] else "",
        )
        for percent in PERCENTS
    ]
    return [
        *rows,
        Row(metric=f"{name}: longest batch", unit="s", ours=run.facts["longest_s"]),
        Row(metric=f"{name}: items of a batch", unit="mean", ours=run.facts["items_mean"]),
        Row(metric=f"{name}: batches", unit="count", ours=run.facts["batches"]),
    ]
