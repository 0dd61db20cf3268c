"""A8: what ends in time while a pool is offered 1.5 times what it can do, in three SLO classes.

What: one pool, a simulated GPU that is twice as fast. Jobs of 200 items arrive in bursts (gaps of
BurstGPT, Gamma of shape 0.5) at 1.5 times the capacity, each with a target of 6, 12 or 24 s, drawn
at random. Lengths are those of Azure's code trace, prompts divided by 32. All jobs are of one
tenant. In the fair order a job has its target as its deadline; it expires then, so nothing is
older. The other orders know no deadlines: their jobs expire after a day. Strict priority gets a
priority by class. Round robin has no second tenant here, and is FIFO.

How: a job counts if its last item succeeded within its target by the database's clock. Of the
second half of the arrivals a separate row says what happens once the queue has formed: FIFO's queue
grows by half a second each second, so its share falls with the length of the run. The oldest item
is that of the job that had its last row latest, or none yet, over its target. The engine is
simulated.

Goal: 5 times FIFO's jobs in time; none older than its bound.
"""

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from openai.types import Batch

from benchmarks.children.disciplines import DISCIPLINES, FAIR
from benchmarks.data.input_files import SEED
from benchmarks.data.published_traces import (
    AZURE_CODE,
    BURST_GAP_SHAPE,
    Lengths,
    arrival_times,
    draw_lengths,
)
from benchmarks.data.simulated_gpu import SimulatedGpu, trace_file
from benchmarks.runs import Report, Row, Run, Setup
from benchmarks.stacks.scheduling_stack import LastRow, SchedulingStack, scheduling_stack
from benchmarks.stacks.stack_jobs import JobsClient
from core.urgency import PRIORITY_DEFAULT

GPU = SimulatedGpu(speed=2)
PROMPT_DIVISOR = 32
JOB_ITEMS = 200
TARGETS_S = (6, 12, 24)
PRIORITIES = (9, 5, 1)
STRICT_PRIORITY = "strict_priority"
LOAD = 1.5
JOBS, QUICK_JOBS = 1_200, 60
FILES = 20
CREATORS = 16
WARM_UP_JOBS = 10
EXPIRED_S = 3.0
"""How long after its deadline a job is closed at the latest."""

GOODPUT_GOAL, AGE_GOAL = "≥ 5", "≤ 1"


@dataclass(frozen=True, slots=True)
class OfferedJob:
    """A job to create, and its class."""

    at_s: float
    file: int
    slo: int  # index in `TARGETS_S`


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a job."""

    offered: OfferedJob
    last: LastRow | None  # None: nothing succeeded
    age_s: float  # when it ended, or when all was counted

    @property
    def is_in_time(self) -> bool:
        """Whether all of its items succeeded within its target."""
        target_s = TARGETS_S[self.offered.slo]
        return self.last is not None and (
            self.last.items == JOB_ITEMS and self.last.seconds <= target_s
        )


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    names = [FAIR, "fifo"] if setup.quick else [FAIR, *DISCIPLINES]
    lengths = [draw_job(seed=SEED + number) for number in range(FILES)]
    jobs = offered_jobs(setup.count(JOBS, QUICK_JOBS), lengths)
    runs = {}
    for name in names:
        with scheduling_stack(setup.work / name, GPU, discipline=name) as stack:
            runs[name] = _run(setup, stack, jobs, lengths, name)
        setup.note(f"{name}: {runs[name].facts}")
    rows = [row for name, run in runs.items() for row in _rows(name, run, runs["fifo"])]
    return Report(name="overload_goodput", rows=rows, runs=[*runs.values()])


def draw_job(*, seed: int) -> list[Lengths]:
    """Return the lengths of the items of a job."""
    drawn = draw_lengths(AZURE_CODE, JOB_ITEMS, seed=seed)
    return [Lengths(max(25, one.prompt // PROMPT_DIVISOR), one.output) for one in drawn]


def offered_jobs(count: int, lengths: Sequence[Sequence[Lengths]]) -> list[OfferedJob]:
    """Return jobs that need `LOAD` times the engine."""
    job_s = sum(GPU.seconds(*one) for file in lengths for one in file) / len(lengths)
    rate = LOAD / job_s
    rng = random.Random(SEED)
    times = arrival_times(rate, count / rate, shape=BURST_GAP_SHAPE, seed=SEED)
    return [
        OfferedJob(at_s, rng.randrange(len(lengths)), rng.randrange(len(TARGETS_S)))
        for at_s in times
    ]


def _run(
    setup: Setup,
    stack: SchedulingStack,
    offered: Sequence[OfferedJob],
    lengths: Sequence[Sequence[Lengths]],
    name: str,
) -> Run:
    """Create the jobs at their times, and wait until the last target has passed."""
    has_deadlines = name == FAIR
    client = stack.tenant()
    paths = [setup.work / f"{number}.jsonl" for number in range(FILES)]
    file_ids = [
        client.upload(trace_file(path, one).path)[0]
        for path, one in zip(paths, lengths, strict=True)
    ]
    for number in range(WARM_UP_JOBS):
        stack.wait_for_end(client.start(file_ids[number % FILES]), 30.0)
    started_s = time.monotonic()

    def create(one: OfferedJob) -> Batch:
        batch = client.start(file_ids[one.file], priority=priority_of(one, name))
        if has_deadlines:
            client.set_deadline(batch, batch.created_at + TARGETS_S[one.slo])
        return batch

    with ThreadPoolExecutor(CREATORS) as pool:
        futures = []
        for one in offered:
            time.sleep(max(0.0, started_s + one.at_s - time.monotonic()))
            futures.append(pool.submit(create, one))
        batches = [future.result() for future in futures]
    time.sleep(max(TARGETS_S) + EXPIRED_S)
    ended = _ended(stack, offered, batches, has_deadlines=has_deadlines)
    _cancel_all(client, batches, ended)
    return _run_of(ended)


def priority_of(one: OfferedJob, name: str) -> int:
    """Return the priority of a class, which only strict priority knows."""
    return PRIORITIES[one.slo] if name == STRICT_PRIORITY else PRIORITY_DEFAULT


def _ended(
    stack: SchedulingStack,
    offered: Sequence[OfferedJob],
    batches: Sequence[Batch],
    *,
    has_deadlines: bool,
) -> list[Ended]:
    last = stack.last_rows(batches)
    now_s = stack.now_s()
    found = []
    for one, batch in zip(offered, batches, strict=True):
        row = last.get(batch.id)
        if row is not None and row.items == JOB_ITEMS:
            age_s = row.seconds
        elif has_deadlines:
            age_s = stack.settled_after_s(batch, now_s)
        else:
            age_s = now_s - batch.created_at
        found.append(Ended(one, row, age_s))
    return found


def _cancel_all(client: JobsClient, batches: Sequence[Batch], ended: Sequence[Ended]) -> None:
    for batch, one in zip(batches, ended, strict=True):
        if one.last is None or one.last.items < JOB_ITEMS:
            client.request_cancel(batch)


def _run_of(ended: Sequence[Ended]) -> Run:
    seconds = max(1e-9, ended[-1].offered.at_s)
    half = ended[len(ended) // 2 :]
    facts = {
        "in_time": sum(one.is_in_time for one in ended),
        "in_time_later": sum(one.is_in_time for one in half),
        "offered": len(ended),
        "offered_later": len(half),
        "age": max(one.age_s / TARGETS_S[one.offered.slo] for one in ended),
    }
    for slo, target_s in enumerate(TARGETS_S):
        mine = [one for one in ended if one.offered.slo == slo]
        facts[f"in_time_{target_s}"] = sum(one.is_in_time for one in mine) / max(1, len(mine))
    return Run(items=max(1, JOB_ITEMS * len(ended)), seconds=seconds, cpu_s={}, facts=facts)


def _rows(name: str, run: Run, fifo: Run) -> list[Row]:
    facts, others = run.facts, fifo.facts
    is_ours = name == FAIR
    rows = [
        Row(
            metric=f"{name}: jobs in time",
            unit="× FIFO",
            ours=facts["in_time"] / max(1.0, others["in_time"]),
            goal=GOODPUT_GOAL if is_ours else "",
        ),
        Row(
            metric=f"{name}: jobs in time, second half",
            unit="× FIFO",
            ours=facts["in_time_later"] / max(1.0, others["in_time_later"]),
        ),
        Row(
            metric=f"{name}: jobs in time",
            unit="share",
            ours=facts["in_time"] / facts["offered"],
        ),
        Row(
            metric=f"{name}: jobs in time, second half",
            unit="share",
            ours=facts["in_time_later"] / facts["offered_later"],
        ),
    ]
    rows += [
        Row(
            metric=f"{name}: target of {target_s} s",
            unit="share",
            ours=facts[f"in_time_{target_s}"],
        )
        for target_s in TARGETS_S
    ]
    rows.append(
        Row(
            metric=f"{name}: oldest job",
            unit="× its target",
            ours=facts["age"],
            goal=AGE_GOAL if is_ours else "",
        )
    )
    return rows
