"""A6, A8 and A9 in virtual time: minutes of a pool take seconds, and the machine's load is nothing.

What: the tenants, jobs and lengths of `fair_gap`, `overload_goodput` and `small_beside_large`, with
the rules of all stages (`benchmarks.simulation.pool`) and the simulated GPU, without Kafka,
Postgres and processes. So it shows what the rules do, and what the real runs add to it.

How: `fair_gap` is measured for 40 s from 20 s after the other tenants came on, when what the
flooding tenant got before is settled. `overload_goodput` has 1,200 jobs. A small job counts until
its last row. The other orders run with whole jobs on the log.

Goal: those of the three benchmarks.
"""

from functools import partial
from statistics import mean

from benchmarks.children.disciplines import DISCIPLINES, FAIR
from benchmarks.data.input_files import SEED
from benchmarks.data.published_traces import AZURE_CODE, Lengths, draw_lengths
from benchmarks.data.simulated_gpu import SLOTS, SimulatedGpu
from benchmarks.measurements import fair_gap, overload_goodput, small_beside_large
from benchmarks.runs import Report, Row, Setup
from benchmarks.simulation.jobs import DAY_S, SimulatedJob
from benchmarks.simulation.pool import SimulatedPool
from benchmarks.statistics.fairness import Service, service_gap
from gpu_consumers.flow_control.grants import bulk_limit

JOBS, QUICK_JOBS = 1_200, 300
SMALL_JOBS, LARGE_ITEMS, SMALL_JOB_S_MAX = 100, 200_000, 30.0
FAIR_ITEMS, FLOOD_JOBS, OTHERS_COME_S, SETTLING_S, MEASURED_S = 9_000, 5, 3.0, 20.0, 40.0
LAST_JOB_S = 27.0
"""From the last arrival on, until every target has passed."""


def measure(setup: Setup) -> Report:
    """Run the benchmark; `--items` is the number of overload's jobs."""
    rows = [*_fairness_rows(1), *_fairness_rows(3)]
    count = setup.count(JOBS, QUICK_JOBS)
    goodput = {}
    for name in [FAIR, "fifo", "strict_priority"]:
        goodput[name], later, age = overload(name, count)
        rows += [
            Row(metric=f"A8 {name}: jobs in time", unit="share", ours=goodput[name]),
            Row(metric=f"A8 {name}: jobs in time, second half", unit="share", ours=later),
            Row(metric=f"A8 {name}: oldest job", unit="× its target", ours=age),
        ]
        setup.note(f"{name}: {goodput[name]:.3f}")
    ratio = goodput[FAIR] / max(goodput["fifo"], 1 / count)
    rows.append(Row(metric="A8 fair: jobs in time", unit="× FIFO", ours=ratio, goal="≥ 5"))
    alone = small_jobs(FAIR, is_alone=True)
    for name in [FAIR, *DISCIPLINES]:
        beside = small_jobs(name)
        goal = small_beside_large.GOAL if name == FAIR else ""
        metric = f"A9 {name}: p99 beside the large job"
        rows.append(Row(metric=metric, unit="× alone", ours=beside / alone, goal=goal))
    return Report(name="virtual_scheduling", rows=rows, runs=[])


def fairness(
    batcher_count: int, *, settling_s: float = SETTLING_S, measured_s: float = MEASURED_S
) -> tuple[float, float, float]:
    """Return the gap over its bound, the least share over the mean, and the engine's use."""
    gpu, weights = fair_gap.GPU, fair_gap.WEIGHTS
    pool = SimulatedPool(gpu, batcher_count=batcher_count)
    files = [
        draw_lengths(trace, FAIR_ITEMS, seed=SEED + number)
        for number, trace in enumerate(fair_gap.TRACES)
    ]
    for number in range(FLOOD_JOBS + len(weights) - 1):
        tenant = max(0, number - FLOOD_JOBS + 1)
        created_s = OTHERS_COME_S if tenant else 0.0
        lengths = files[tenant % len(files)]
        pool.add(SimulatedJob(number, tenant, lengths, created_s, weight=weights[tenant]))
    since_s = OTHERS_COME_S + settling_s
    pool.events.run_until(since_s + measured_s)
    services: list[list[Service]] = [[] for _ in weights]
    for job in pool.jobs.values():
        services[job.tenant] += [
            Service(at_s, gpu.seconds(*lengths) / weights[job.tenant])
            for at_s, lengths in job.ends
            if at_s > since_s
        ]
    shares = [sum(one.amount for one in tenant) for tenant in services]
    used_s = sum(share * weight for share, weight in zip(shares, weights, strict=True))
    count = sum(map(len, services))
    limit = bulk_limit(SLOTS, count / measured_s, fair_gap.BATCH_ITEMS)
    more_s = fair_gap.SERVICE_OF_SEVERAL_S if batcher_count > 1 else 0.0
    gap = service_gap(services) / (limit * used_s / count + more_s)
    return gap, min(shares) / mean(shares), used_s / measured_s


def _fairness_rows(batcher_count: int) -> list[Row]:
    gap, share, used = fairness(batcher_count)
    name = f"A6 fair, {batcher_count} batcher{'s' * (batcher_count > 1)}"
    return [
        Row(metric=f"{name}: gap", unit="× bound", ours=gap, goal="≤ 1"),
        Row(metric=f"{name}: least share of a tenant", unit="× mean", ours=share),
        Row(metric=f"{name}: service of the engine", unit="share", ours=used, goal="≥ 0.99"),
    ]


def overload(name: str, count: int) -> tuple[float, float, float]:
    """Return the share of jobs in time, that of the second half, and the oldest job's age."""
    files = range(overload_goodput.FILES)
    lengths = [overload_goodput.draw_job(seed=SEED + number) for number in files]
    pool = _pool(name, overload_goodput.GPU)
    offered = overload_goodput.offered_jobs(count, lengths)
    jobs = []
    for number, one in enumerate(offered):
        target_s = overload_goodput.TARGETS_S[one.slo]
        job = SimulatedJob(
            number,
            0,
            lengths[one.file],
            one.at_s,
            deadline_s=one.at_s + target_s if name == FAIR else DAY_S,
            priority=overload_goodput.priority_of(one, name),
        )
        jobs.append((job, target_s))
        pool.events.call_later(one.at_s, partial(pool.add, job))
    end_s = offered[-1].at_s + LAST_JOB_S
    pool.events.run_until(end_s)
    in_time = [
        len(job.ends) == len(job.lengths) and job.ends[-1][0] <= job.created_s + target_s
        for job, target_s in jobs
    ]
    ages = [
        ((end_s if job.settled_s is None else job.settled_s) - job.created_s) / target_s
        for job, target_s in jobs
    ]
    half = in_time[len(in_time) // 2 :]
    return sum(in_time) / len(in_time), sum(half) / len(half), max(ages)


def small_jobs(name: str, *, is_alone: bool = False) -> float:
    """Return the p99 of the times of small jobs in turn; the limit if one does not end."""
    pool = _pool(name, small_beside_large.GPU)
    if not is_alone:
        large = _lengths(20_000, SEED) * (LARGE_ITEMS // 20_000)
        pool.add(SimulatedJob(0, 0, large, 0.0))
        pool.events.run_until(8.0)
    lengths = _lengths(small_beside_large.SMALL_ITEMS, SEED + 1)
    seconds = []
    for number in range(1, SMALL_JOBS + 1):
        began_s = pool.events.monotonic_s()
        job = SimulatedJob(number, 1, lengths, began_s)
        pool.add(job)
        while job.settled_s is None:
            pool.events.run_until(pool.events.monotonic_s() + 0.01)
            if pool.events.monotonic_s() > began_s + SMALL_JOB_S_MAX:
                return SMALL_JOB_S_MAX
        seconds.append(job.settled_s - began_s)
    return sorted(seconds)[-2]


def _lengths(count: int, seed: int) -> list[Lengths]:
    divisor = small_beside_large.PROMPT_DIVISOR
    drawn = draw_lengths(AZURE_CODE, count, seed=seed)
    return [Lengths(max(1, one.prompt // divisor), one.output) for one in drawn]


def _pool(name: str, gpu: SimulatedGpu) -> SimulatedPool:
    return SimulatedPool(gpu, discipline=None if name == FAIR else DISCIPLINES[name])
