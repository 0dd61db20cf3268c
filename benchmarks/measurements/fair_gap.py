"""A6: how far two tenants get apart, and what fairness costs, against three other orders.

What: one pool, a simulated GPU that is twice as fast. Eight tenants with weights 1 to 4 have a job
with more items than run while it is measured; one of weight 1 floods the pool with twenty such
jobs, which come first. Half of the tenants have the lengths of Azure's conversations, half those of
its code. The orders FIFO, round robin and strict priority (all jobs have one priority) run in the
batcher of the same pipeline, with whole jobs on the log.

How: the rows of some seconds by the database's clock, after all tenants of the fair order have
rows. Service is the time of the full engine that an item's tokens take, divided by the weight of
its tenant. The gap is the largest difference of two tenants in any interval (VTC, definition 4.1).
A window in flight is what the replica lets be with it, in service of a tenant of weight 1. The
engine is simulated.

Goal: a gap of one window with one batcher, of one window and 1 s of service with three; 0.99 of
FIFO's tokens a second.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from statistics import mean

from openai.types import Batch

from benchmarks.children.disciplines import DISCIPLINES, FAIR
from benchmarks.data.input_files import SEED
from benchmarks.data.published_traces import AZURE_CODE, AZURE_CONVERSATION, draw_lengths
from benchmarks.data.simulated_gpu import SLOTS, SimulatedGpu, trace_file
from benchmarks.runs import Report, Row, Run, Setup
from benchmarks.stacks.scheduling_stack import ItemRow, SchedulingStack, scheduling_stack
from benchmarks.statistics.fairness import Service, service_gap
from gpu_consumers.flow_control.grants import bulk_limit
from gpu_consumers.settings import ReplicaSettings

GPU = SimulatedGpu(speed=2)
WEIGHTS = (1, 1, 2, 2, 3, 3, 4, 4)
TRACES = (AZURE_CONVERSATION, AZURE_CODE)
FLOOD_JOBS = 20
ITEMS, QUICK_ITEMS = 1_500, 600
SETTLING_S, QUICK_SETTLING_S = 8.0, 4.0
MEASURED_S, QUICK_MEASURED_S = 40.0, 12.0
BATCHERS = 3
BATCH_ITEMS: int = ReplicaSettings.model_fields["batch_items"].default
SERVICE_OF_SEVERAL_S = 1.0
"""Service by which several batchers may be further apart than one."""

WRITTEN_S = 2.0
"""Rows are written after their items have ended."""

RATE_GOAL = "≥ 0.99"


@dataclass(frozen=True, slots=True)
class Case:
    """One run: an order, and the number of batchers."""

    discipline: str = FAIR
    batcher_count: int = 1

    @property
    def name(self) -> str:
        """What the table shows."""
        if self.batcher_count > 1:
            return f"{self.discipline}, {self.batcher_count} batchers"
        return self.discipline


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    cases = [Case(FAIR), *map(Case, DISCIPLINES), Case(FAIR, BATCHERS)]
    if setup.quick:
        cases = [Case(FAIR), Case("fifo")]
    runs = {}
    for case in cases:
        folder = setup.work / case.name.replace(", ", "-").replace(" ", "-")
        with scheduling_stack(
            folder, GPU, discipline=case.discipline, batcher_count=case.batcher_count
        ) as stack:
            runs[case] = _run(setup, stack)
        setup.note(f"{case.name}: {runs[case].facts}")
    fifo = runs[Case("fifo")]
    rows = [row for case, run in runs.items() for row in _rows(case, run, fifo)]
    return Report(name="fair_gap", rows=rows, runs=[*runs.values()])


def _run(setup: Setup, stack: SchedulingStack) -> Run:
    """Run jobs of all tenants at once, and cancel them after the measurement."""
    count = setup.count(ITEMS, QUICK_ITEMS)
    files = [
        trace_file(setup.work / f"{number}.jsonl", draw_lengths(trace, count, seed=SEED + number))
        for number, trace in enumerate(TRACES)
    ]
    clients = [stack.tenant(weight=weight) for weight in WEIGHTS]
    with ThreadPoolExecutor(len(clients)) as pool:
        uploads = pool.map(lambda one: one[0].upload(one[1].path), zip(clients, cycle(files)))
        file_ids = [file_id for file_id, _ in uploads]
    flood = [clients[0].start(file_ids[0]) for _ in range(FLOOD_JOBS)]
    stack.wait_for_rows(flood)
    jobs = [[c.start(f)] for c, f in zip(clients[1:], file_ids[1:], strict=True)]
    batches: list[list[Batch]] = [flood, *jobs]
    seconds = QUICK_MEASURED_S if setup.quick else MEASURED_S
    time.sleep(QUICK_SETTLING_S if setup.quick else SETTLING_S)
    since_s = stack.now_s()
    time.sleep(seconds + WRITTEN_S)
    rows = [stack.rows(tenant, since_s, since_s + seconds) for tenant in batches]
    for client, tenant in zip(clients, batches, strict=True):
        for batch in tenant:
            client.cancel(batch)
    work_s = [
        f"{stack.engine_s(tenant) / weight:.2f}"
        for tenant, weight in zip(rows, WEIGHTS, strict=True)
    ]
    setup.note(f"service by weight {' '.join(work_s)} s")
    return Run(
        items=max(1, sum(map(len, rows))), seconds=seconds, cpu_s={}, facts=_facts(rows, seconds)
    )


def _facts(rows: Sequence[Sequence[ItemRow]], seconds: float) -> dict[str, float]:
    """Return the gap, the window and the rates of the rows of each tenant."""
    every = [row for tenant in rows for row in tenant]
    services = [
        [
            Service(row.finished_s, GPU.seconds(row.input_tokens, row.output_tokens) / weight)
            for row in tenant
        ]
        for tenant, weight in zip(rows, WEIGHTS, strict=True)
    ]
    used_s = sum(GPU.seconds(row.input_tokens, row.output_tokens) for row in every)
    item_s = used_s / max(1, len(every))
    limit = bulk_limit(
        SLOTS, len(every) / seconds, ReplicaSettings.model_fields["batch_items"].default
    )
    shares = [sum(one.amount for one in tenant) for tenant in services]
    return {
        "gap_s": service_gap(services),
        "window_s": limit * item_s,
        "share_min": min(shares) / max(mean(shares), 1e-9),
        "tokens_per_s": sum(row.input_tokens + row.output_tokens for row in every) / seconds,
        "engine_share": used_s / seconds,
        "items_per_s": len(every) / seconds,
    }


def _rows(case: Case, run: Run, fifo: Run) -> list[Row]:
    facts = run.facts
    more_s = SERVICE_OF_SEVERAL_S if case.batcher_count > 1 else 0.0
    is_ours = case.discipline == FAIR
    gap = facts["gap_s"] / (facts["window_s"] + more_s)
    rate = facts["engine_share"] / max(fifo.facts["engine_share"], 1e-9)
    name = case.name
    return [
        Row(metric=f"{name}: gap", unit="× bound", ours=gap, goal="≤ 1" if is_ours else ""),
        Row(metric=f"{name}: gap", unit="s of service", ours=facts["gap_s"]),
        Row(metric=f"{name}: least share of a tenant", unit="× mean", ours=facts["share_min"]),
        Row(
            metric=f"{name}: service of the engine",
            unit="× FIFO",
            ours=rate,
            goal=RATE_GOAL if is_ours else "",
        ),
        Row(metric=f"{name}: tokens", unit="1/s", ours=facts["tokens_per_s"]),
    ]
