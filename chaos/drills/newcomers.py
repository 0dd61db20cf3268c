"""P15: tenants who share a pool get equal shares, and one who comes later is served at once.

Jobs of ten items are measured first alone, one after the other. Then tenants create a large job
each at the same time, and the small jobs run again beside them. A busy machine runs fewer items a
second, so the items of others that ended before the first row of a small job are counted: they do
not depend on the speed.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Final
from uuid import uuid4

from benchmarks.statistics.fairness import count_between, jain_by_window
from chaos.checkers.end_states import ALL_SUCCEED
from chaos.clients.client import Client, input_lines
from chaos.drills.context import MODEL, DrillContext
from chaos.drills.pool_isolation import CONCURRENCY, LATENCY_MS
from chaos.errors import DrillError
from chaos.measures import Measure
from chaos.observations import database
from chaos.verification.reconciliation import EndedJob, reconcile_jobs

TENANTS: Final = 5
ITEMS: Final = 5000
SMALL_ITEMS: Final = 10
SMALL_JOBS: Final = 6
WINDOW_S: Final = 5.0
END_S_MAX: Final = 180.0

ITEMS_BEFORE_GOAL: Final = CONCURRENCY * 500 // LATENCY_MS
"""Items of others before the first row of a small job: half a second of the replica's work."""

ITEMS_BEFORE_MAX: Final = 5 * ITEMS_BEFORE_GOAL
JAIN_GOAL: Final = 0.97
JAIN_MIN: Final = 0.9
GROWTH_GOAL: Final = 1.5


def run(context: DrillContext) -> Iterator[Measure]:
    """Measure small jobs alone, and beside tenants with a large job each."""
    until_s = time.monotonic() + END_S_MAX
    small = context.create_tenant_client("small")
    file_id = small.upload(f"few-{context.seed}", input_lines(SMALL_ITEMS, MODEL), until_s)
    alone = _run_small_jobs(context, small, file_id, until_s)
    large = [context.create_tenant_client(f"equal-{n}") for n in range(TENANTS)]
    content = input_lines(ITEMS, MODEL)
    files = [client.upload(f"many-{context.seed}", content, until_s) for client in large]

    def create(client: Client, file: str) -> str:
        return str(client.create(f"equal-{context.seed}", file, until_s)["id"])

    with ThreadPoolExecutor(TENANTS) as pool:
        jobs = list(pool.map(create, large, files))
    beside = _run_small_jobs(context, small, file_id, until_s)
    ended = {
        job: database.await_jobs(context.engine, client, [job], until_s)[job]
        for client, job in zip(large, jobs, strict=True)
    }
    if database.ended_s(context.engine, beside[-1]) > min(
        database.ended_s(context.engine, job) for job in jobs
    ):
        raise DrillError("a large job ended before the last small one: they had too few items")
    yield from _shares(context, jobs)
    yield from _small_jobs(context, alone, beside, jobs)
    for client, job in zip(large, jobs, strict=True):
        end = EndedJob(ended[job], ITEMS, ALL_SUCCEED, content)
        yield from reconcile_jobs(context.engine, client, [end])


def _run_small_jobs(
    context: DrillContext, small: Client, file_id: str, until_s: float
) -> Sequence[str]:
    """Run small jobs, one after the other; return their ids."""
    found = []
    for _ in range(SMALL_JOBS):
        job = str(small.create(f"small-{uuid4().hex}", file_id, until_s)["id"])
        database.await_jobs(context.engine, small, [job], until_s)
        found.append(job)
    return found


def _shares(context: DrillContext, jobs: Sequence[str]) -> Iterator[Measure]:
    timings = database.job_timings(context.engine, jobs).values()
    began_s = min(timing.created_s for timing in timings)
    rows_s = [database.row_times(context.engine, job) for job in jobs]
    jain = jain_by_window(rows_s, began_s=began_s, window_s=WINDOW_S)[1:]
    what = f"least of Jain's index of {TENANTS} equal tenants in each 5 s"
    least = round(min(jain, default=0.0), 3)
    texts = " ".join(f"{index:.2f}" for index in jain)
    yield Measure("P15", what, least, limit=JAIN_MIN, relation=">=", size=len(jain), evidence=texts)
    lost = round(1 - least, 3)
    limit = round(1 - JAIN_GOAL, 2)
    yield Measure("P15", f"1 minus the {what}", lost, limit=limit, relation="goal", size=len(jain))


def _small_jobs(
    context: DrillContext, alone: Sequence[str], beside: Sequence[str], large: Sequence[str]
) -> Iterator[Measure]:
    engine, name = context.engine, f"small jobs beside {TENANTS} large ones"
    timings = database.job_timings(engine, [*alone, *beside])
    rows_s = [database.row_times(engine, job) for job in large]
    before = [_items_before(context, job, timings[job], rows_s) for job in beside]
    yield Measure(
        "P15",
        f"{name}: items of others before the first row",
        max(before),
        limit=ITEMS_BEFORE_MAX,
        size=len(before),
        evidence=str(before),
    )
    yield Measure(
        "P15",
        f"{name}: the same, median",
        median(before),
        limit=ITEMS_BEFORE_GOAL,
        relation="goal",
        size=len(before),
    )
    alone_s, beside_s = (median(timings[job].took_s for job in jobs) for jobs in (alone, beside))
    evidence = f"{alone_s:.2f} s alone, {beside_s:.2f} s beside"
    yield Measure(
        "P15",
        f"{name}: added to their median",
        round(beside_s - alone_s, 2),
        unit="s",
        relation="report",
        size=len(beside),
        evidence=evidence,
    )
    yield Measure(
        "P15",
        f"{name}: growth of their median",
        round(beside_s / alone_s, 2),
        limit=GROWTH_GOAL,
        relation="goal",
        size=len(beside),
        evidence=evidence,
    )


def _items_before(
    context: DrillContext,
    job: str,
    timing: database.JobTiming,
    others_s: Sequence[Sequence[float]],
) -> int:
    """Return the rows of others between the validation of a job and its first row."""
    validated_s = timing.created_s + timing.validated_s
    first_s = database.row_times(context.engine, job)[0]
    return sum(count_between(times, validated_s, first_s) for times in others_s)
