"""A9: small jobs of a tenant while the job of another one has a million items.

What: one pool, a simulated GPU that is twice as fast. Jobs of 10 items, one after the other: alone,
and after a job of a million items of another tenant has begun. Lengths are those of Azure's code
trace, prompts divided by 32, so that the large file stays below the limit of uploads. The orders
FIFO, round robin and strict priority (all jobs have one priority) run in the batcher of the same
pipeline, with whole jobs on the log (of the large job 200,000 items).

How: times are those of the database, from a job's creation to its completion. All small jobs use
one file. A job that has not ended after 30 s counts as 30 s, and as the last one. Of 100 jobs the
99th percentile is between the two longest. The engine is simulated.

Goal: p99 beside the large job 1.10 times that alone.
"""

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

from openai.types import Batch

from benchmarks.children.disciplines import DISCIPLINES, FAIR
from benchmarks.data.input_files import SEED
from benchmarks.data.published_traces import AZURE_CODE, Lengths, draw_lengths
from benchmarks.data.simulated_gpu import SimulatedGpu, chat_body, write_chats
from benchmarks.runs import Report, Row, Run, Setup
from benchmarks.stacks.load_runs import percentiles_ms
from benchmarks.stacks.scheduling_stack import SchedulingStack, scheduling_stack

GPU = SimulatedGpu(speed=2)
PROMPT_DIVISOR = 32
LARGE_ITEMS, QUICK_LARGE_ITEMS = 1_000_000, 30_000
SMALL_ITEMS = 10
SMALL_JOBS, QUICK_SMALL_JOBS = 100, 15
SMALL_JOB_S_MAX, QUICK_SMALL_JOB_S_MAX = 30.0, 10.0
WARM_UP_JOBS = 5
PERCENTS = (50, 99)
GOAL = "≤ 1.1"

_BODIES = 20_000  # different ones of the large job


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    names = [FAIR, "fifo"] if setup.quick else [FAIR, *DISCIPLINES]
    large = _file(
        setup.work / "large.jsonl", setup.count(LARGE_ITEMS, QUICK_LARGE_ITEMS), seed=SEED
    )
    small = _file(setup.work / "small.jsonl", SMALL_ITEMS, seed=SEED + 1)
    rows: list[Row] = []
    runs: list[Run] = []
    for name in names:
        with scheduling_stack(setup.work / name, GPU, discipline=name) as stack:
            alone, beside = _run(setup, stack, large, small)
        setup.note(f"{name}: alone {alone.facts}, beside {beside.facts}")
        runs += [alone, beside]
        rows += _rows(name, alone, beside)
    return Report(name="small_beside_large", rows=rows, runs=runs)


def _file(path: Path, count: int, *, seed: int) -> Path:
    lengths = draw_lengths(AZURE_CODE, min(count, _BODIES), seed=seed)
    bodies = [
        chat_body(Lengths(max(1, one.prompt // PROMPT_DIVISOR), one.output), number)
        for number, one in enumerate(lengths)
    ]
    return write_chats(path, islice(cycle(bodies), count)).path


def _run(setup: Setup, stack: SchedulingStack, large: Path, small: Path) -> tuple[Run, Run]:
    """Run small jobs alone and beside the large one, which is cancelled afterwards."""
    client, whale = stack.tenant(), stack.tenant()
    small_id, _ = client.upload(small)
    large_id, _ = whale.upload(large)
    count = QUICK_SMALL_JOBS if setup.quick else SMALL_JOBS
    s_max = QUICK_SMALL_JOB_S_MAX if setup.quick else SMALL_JOB_S_MAX

    def run_jobs(number: int) -> list[float]:
        seconds: list[float] = []
        for _ in range(number):
            took_s = stack.wait_for_end(client.start(small_id), s_max)
            seconds.append(s_max if took_s is None else took_s)
            if took_s is None:
                break
        return seconds

    run_jobs(WARM_UP_JOBS)
    alone = _run_of(run_jobs(count))
    batch: Batch = whale.start(large_id)
    stack.wait_for_rows([batch])
    beside_s = run_jobs(count)
    rate = len(stack.rows([batch])) / max(1e-9, sum(beside_s))
    whale.cancel(batch)
    return alone, _run_of(beside_s, large_items_per_s=rate)


def _run_of(seconds: Sequence[float], **facts: float) -> Run:
    samples = [*seconds, *seconds] if len(seconds) == 1 else seconds
    return Run(
        items=SMALL_ITEMS * len(seconds),
        seconds=sum(seconds),
        cpu_s={},
        facts={**percentiles_ms(samples, PERCENTS), **facts},
    )


def _rows(name: str, alone: Run, beside: Run) -> list[Row]:
    rows = []
    for percent in PERCENTS:
        key = f"p{percent}_ms"
        rows += [
            Row(
                metric=f"{name}: p{percent} beside the large job",
                unit="ms",
                ours=beside.facts[key],
                peer=alone.facts[key],
            ),
            Row(
                metric=f"{name}: p{percent} beside the large job",
                unit="× alone",
                ours=beside.facts[key] / alone.facts[key],
                goal=GOAL if name == FAIR and percent == PERCENTS[-1] else "",
            ),
        ]
    return rows
