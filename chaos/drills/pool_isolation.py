"""P15: tenants on pools that are dead, slow or paused do not slow a pool that works.

A working pool runs a large job, and a second tenant's jobs of one item. Their rate and their p95
are measured first alone, and then beside many tenants who have a job each on one of three other
pools: a pool without a replica, a pool whose items take `SLOW_ITEM_S`, and a pool whose replica is
stopped by SIGSTOP while its buffers are full. Uploading and validating the files of these tenants
takes CPU time, so the second measurement begins once the small jobs created meanwhile have ended;
how long that takes is reported.
"""

import json
import math
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from chaos.checkers.acceptance import probed_ids
from chaos.checkers.end_states import MAY_BE_CANCELLED
from chaos.clients.client import Client, input_lines, job_body
from chaos.clients.observers import probing
from chaos.drills.context import MODEL, DrillContext
from chaos.errors import DrillError
from chaos.installations.hosts import wait_until
from chaos.measures import Measure
from chaos.observations import database
from chaos.verification.reconciliation import EndedJob, reconcile_jobs
from cli.load.load_client import percentile
from cli.stack.served_models import served_model
from cli.stack.stack_setup import register_model

DEAD_MODEL: Final = "without-replica"
SLOW_MODEL: Final = "slow"
PAUSED_MODEL: Final = "paused"
SERVED_MODELS: Final = (MODEL, SLOW_MODEL, PAUSED_MODEL)
"""The models of the installation, each with a pool and a replica."""

SLOW_ITEM_S: Final = 10.0
LATENCY_MS: Final = 40
CONCURRENCY: Final = 32
"""The working pool runs 800 items/s: less than the machine can do, so that the rate shows
whether it has work, and not how busy the machine is."""

_SLOW_TEXT: Final = "SLOW-ITEM"
CALL_TEXT: Final = "CALL-OF-A-SECOND"
CALL_S: Final = 1.0
FAULTS: Final = json.dumps(
    [
        {"contains": text, "fault": "slow", "slow_s": round(seconds - LATENCY_MS / 1000, 3)}
        for text, seconds in ((_SLOW_TEXT, SLOW_ITEM_S), (CALL_TEXT, CALL_S))
    ]
)
"""Faults of the simulated engine: items with these texts take these seconds."""

ITEMS: Final = 250_000
"""More than run while the rate is measured; the rest is cancelled."""

JOB_ITEMS: Final = 500
PAUSED_JOB_ITEMS: Final = 2000
"""Enough that the pool still has work when it is paused."""

MEASURED_S: Final = 12.0
SETTLING_S: Final = 4.0
LOADED_S_MAX: Final = 300.0
BACKLOG_S_MAX: Final = 120.0
END_S_MAX: Final = 120.0

RATE_SHARE_GOAL: Final = 0.95
RATE_SHARE_MIN: Final = 0.8
"""The goal is for a quiet machine; the minimum is far above the rate of a pool that is held up."""

P95_GROWTH_GOAL: Final = 1.2
ADDED_S_MAX: Final = 2.0
BACKLOG_AGE_S: Final = 2.0
"""A small job that is older and has not ended belongs to a backlog."""

_QUANTILE: Final = 0.95
_CREATE: Final = "create batch"
_SUBMITTERS: Final = 4


@dataclass(frozen=True, slots=True)
class Period:
    """A measured period, in epoch seconds, and the rate of the working pool in it."""

    started_s: float
    ended_s: float
    items_per_s: float


def run(context: DrillContext) -> Iterator[Measure]:
    """Measure the working pool alone, and then beside tenants on other pools."""
    until_s = time.monotonic() + LOADED_S_MAX
    large = context.create_tenant_client("large")
    content = input_lines(ITEMS, MODEL)
    large_id = str(large.submit(f"large-{context.seed}", content, until_s)["id"])
    small = context.create_tenant_client("small")
    file_id = small.upload(f"small-{context.seed}", input_lines(1, MODEL), until_s)
    requests = {_CREATE: {"method": "POST", "url": "/v1/batches", "json": job_body(file_id)}}
    with probing(context.recorder, small.urls[0], small.key, requests):
        alone = _measure(context, large_id)
        tenant_count = _load_other_pools(context, until_s)
        with _paused_pool(context):
            backlog_s = _await_small_jobs(context)
            beside = _measure(context, large_id)
    yield Measure(
        "P15",
        f"until small jobs had no backlog, after {tenant_count} tenants had submitted",
        round(backlog_s, 1),
        unit="s",
        relation="report",
    )
    yield from _compare(context, small, alone, beside, tenant_count)
    ended = database.cancel_jobs(context.engine, large, [large_id], time.monotonic() + END_S_MAX)
    job = EndedJob(ended[large_id], ITEMS, MAY_BE_CANCELLED, content)
    yield from reconcile_jobs(context.engine, large, [job])


def _measure(context: DrillContext, large_id: str) -> Period:
    """Measure a period that begins once the large job advances. Raises DrillError."""
    engine = context.engine
    wait_until(
        lambda: database.counter_tally(engine, large_id).succeeded > 0, LOADED_S_MAX, "progress"
    )
    time.sleep(SETTLING_S)
    first = database.counter_tally(engine, large_id).succeeded
    started_s, clock_s = time.time(), time.monotonic()
    time.sleep(MEASURED_S)
    elapsed_s = time.monotonic() - clock_s
    last = database.counter_tally(engine, large_id).succeeded
    if last >= ITEMS:
        raise DrillError("the large job has ended: the working pool had too little work")
    rate = (last - first) / elapsed_s
    context.note(f"the working pool runs {rate:.0f} items/s")
    return Period(started_s, started_s + elapsed_s, rate)


def _load_other_pools(context: DrillContext, until_s: float) -> int:
    """Create tenants with a job each on the other pools in turn; return how many tenants.

    Returns when all jobs are validated. Raises DrillError.
    """
    with context.engine.begin() as connection:
        register_model(connection, served_model(DEAD_MODEL, "simulated", None))
    count = context.size(1000, 300)
    clients = [context.create_tenant_client(f"other-{number}") for number in range(count)]
    texts = dict.fromkeys(range(JOB_ITEMS), _SLOW_TEXT)
    contents = {
        DEAD_MODEL: input_lines(JOB_ITEMS, DEAD_MODEL),
        SLOW_MODEL: input_lines(JOB_ITEMS, SLOW_MODEL, texts),
        PAUSED_MODEL: input_lines(PAUSED_JOB_ITEMS, PAUSED_MODEL),
    }

    def submit(client: Client, model: str) -> str:
        return str(client.submit(f"{client.name}-{context.seed}", contents[model], until_s)["id"])

    with ThreadPoolExecutor(_SUBMITTERS) as pool:
        jobs = list(pool.map(submit, clients, cycle(contents)))
    wait_until(lambda: _are_validated(context, jobs), LOADED_S_MAX, "the jobs of other pools")
    return count


def _are_validated(context: DrillContext, jobs: Sequence[str]) -> bool:
    states = database.job_states(context.engine)
    return all(states[job] != "validating" for job in jobs)


@contextmanager
def _paused_pool(context: DrillContext) -> Iterator[None]:
    """Stop the replica of the paused pool during a block."""
    (host,) = context.installation.hosts.values()
    pid = host.replica_pid(served_model(PAUSED_MODEL, "simulated", None).pool)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _await_small_jobs(context: DrillContext) -> float:
    """Wait until small jobs have no backlog; return how long that took, in seconds.

    Raises DrillError after `BACKLOG_S_MAX`.
    """
    started_s = time.monotonic()

    def has_no_backlog() -> bool:
        ids = probed_ids(context.recorder.operations())
        timings = database.job_timings(context.engine, ids).values()
        now_s = time.time()
        return not any(
            job.took_s == math.inf and now_s - job.created_s > BACKLOG_AGE_S for job in timings
        )

    wait_until(has_no_backlog, BACKLOG_S_MAX, "small jobs without a backlog")
    return time.monotonic() - started_s


def _compare(
    context: DrillContext, small: Client, alone: Period, beside: Period, tenant_count: int
) -> list[Measure]:
    """Return the share of the rate that is left, and the growth of the p95 of small jobs."""
    before, during = _small_jobs(context, small, (alone, beside))
    if not before or not during:
        raise DrillError("no small job was created in a period")
    p95_alone_s, p95_s = (
        percentile([job.took_s for job in jobs], _QUANTILE) for jobs in (before, during)
    )
    is_known = math.isfinite(p95_alone_s) and math.isfinite(p95_s)
    added_s = round(p95_s - p95_alone_s, 2) if is_known else math.inf
    share = round(beside.items_per_s / alone.items_per_s, 3)
    tenants = f"beside {tenant_count} tenants on other pools"
    rates = f"{alone.items_per_s:.0f} items/s alone"
    slowest = max(during, key=lambda job: job.took_s)
    waits = (
        f"p95 {p95_alone_s:.2f} s alone, {p95_s:.2f} s then; the slowest job was validated "
        f"after {slowest.validated_s:.2f} s, settled after {slowest.settled_s:.2f} s, "
        f"completed after {slowest.took_s:.2f} s"
    )
    lost = round(1 - share, 3)
    return [
        Measure(
            "P15",
            f"share of a pool's rate {tenants}",
            share,
            limit=RATE_SHARE_MIN,
            relation=">=",
            evidence=rates,
        ),
        Measure(
            "P15",
            f"part of a pool's rate lost {tenants}",
            lost,
            limit=round(1 - RATE_SHARE_GOAL, 2),
            relation="goal",
        ),
        Measure(
            "P15",
            f"added to the p95 of small jobs {tenants}",
            added_s,
            unit="s",
            limit=ADDED_S_MAX,
            size=len(during),
            evidence=waits,
        ),
        Measure(
            "P15",
            f"growth of that p95 {tenants}",
            round(p95_s / p95_alone_s, 2) if is_known else math.inf,
            limit=P95_GROWTH_GOAL,
            relation="goal",
            size=len(during),
        ),
    ]


def _small_jobs(
    context: DrillContext, small: Client, periods: Sequence[Period]
) -> list[list[database.JobTiming]]:
    """Return the timings of the jobs that were created in each period."""
    ids = probed_ids(context.recorder.operations())
    database.await_jobs(context.engine, small, ids, time.monotonic() + END_S_MAX)
    timings = database.job_timings(context.engine, ids).values()
    return [
        [job for job in timings if period.started_s <= job.created_s < period.ended_s]
        for period in periods
    ]
