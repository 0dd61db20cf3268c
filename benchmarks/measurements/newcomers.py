"""What a tenant waits for that comes to a pool which others keep busy, and whether all get as much.

What: one pool, one batcher, one replica of 20 ms × 64. First, tenants with 60,000 items each create
their jobs within a second: the time of each one's first row, and Jain's index of the rows of every
5 s while all have items. Then jobs of 10 items, one after the other: alone, and beside 1, 4 and 50
tenants with a job of 50,000 items each that have just begun.

How: times are those of the database: a job's creation, its completion, and the transactions that
wrote its rows. Files are uploaded before. A machine that is too busy runs fewer items a second, so
the items of others that ended between the start of a tenant's job and its first row are counted,
too: they do not depend on the speed. Jobs that are not needed any more are cancelled.

Goal: a first row after 0.5 s of the replica's work, 1,600 items; 1.5 × the time alone; Jain ≥ 0.97
from the second 5 s on.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from uuid import uuid4

import sqlalchemy as sa
from openai.types import Batch

from benchmarks.data.input_files import short_file
from benchmarks.runs import Report, Row, Run, Setup
from benchmarks.stacks.load_runs import Server
from benchmarks.stacks.stack import RunningStack, running_stack
from benchmarks.stacks.stack_jobs import POLL_S, JobsClient, is_terminal
from benchmarks.statistics.fairness import count_between, jain_by_window
from cli.stack.services.embedded_postgres import EmbeddedPostgres
from core.ids import JOB, parse_public_id
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings
from tenancy.api_keys import create_key
from tenancy.tenants import create_tenant

MODEL = "simulated"
LATENCY_MS, CONCURRENCY = 20, 64
EQUAL_TENANTS, EQUAL_ITEMS, QUICK_EQUAL_ITEMS = 5, 60_000, 2_000
WHALES, QUICK_WHALES = (1, 4, 50), (1, 2)
WHALE_ITEMS, QUICK_WHALE_ITEMS = 50_000, 2_000
SMALL_ITEMS, SMALL_JOBS, QUICK_SMALL_JOBS = 10, 10, 2
WINDOW_S = 5.0
FIRST_ROW_S_MAX = 0.5
"""Seconds of the replica's work before the first row of a tenant that comes."""

FIRST_ROW_GOAL = f"≤ {FIRST_ROW_S_MAX * CONCURRENCY * 1000 / LATENCY_MS:,.0f}"
RATIO_GOAL, JAIN_GOAL = "≤ 1.5", "≥ 0.97"

_TIMES = sa.text(
    "SELECT extract(epoch FROM finished_at)::float8 FROM items "
    "WHERE job_id = :job ORDER BY finished_at"
)
_JOB = sa.text(
    "SELECT extract(epoch FROM created_at)::float8 AS created_s, "
    "extract(epoch FROM in_progress_at)::float8 AS began_s, "
    "extract(epoch FROM completed_at)::float8 AS ended_s FROM jobs WHERE id = :job"
)
_SUCCEEDED = sa.text("SELECT coalesce(sum(succeeded), 0) FROM job_counters")


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant with an uploaded file."""

    client: JobsClient
    file_id: str


@dataclass(frozen=True, slots=True)
class Timing:
    """A job's times, in epoch seconds by the database's clock."""

    created_s: float
    began_s: float  # when it was validated
    ended_s: float | None
    rows_s: Sequence[float]  # ascending


def measure(setup: Setup) -> Report:
    """Run the benchmark."""
    options = (
        *("--simulated-latency-ms", str(LATENCY_MS)),
        *("--simulated-concurrency", str(CONCURRENCY)),
    )
    env = {"MILLRACE_ENGINE_INTERACTIVE_HEADROOM": "0"}
    runs: list[Run] = []
    with (
        running_stack(setup.work / "stack", *options, env=env) as stack,
        _database(setup.work / "stack") as engine,
    ):
        bench = Newcomers(setup, stack, engine)
        runs.append(bench.run_equal_tenants())
        small = bench.create_tenant(SMALL_ITEMS)
        runs.append(bench.run_small_jobs(small, whale_count=0))
        counts = QUICK_WHALES if setup.quick else WHALES
        runs += [bench.run_small_jobs(small, whale_count=count) for count in counts]
    return Report(name="newcomers", rows=_rows(runs), runs=runs)


class Newcomers:
    """The runs on one stack."""

    def __init__(self, setup: Setup, stack: RunningStack, engine: sa.Engine) -> None:
        self._setup, self._stack, self._engine = setup, stack, engine

    def create_tenant(self, items: int) -> Tenant:
        """Create a tenant and upload its file."""
        with self._engine.begin() as connection:
            tenant = create_tenant(connection, f"tenant-{uuid4().hex[:8]}")
            secret = create_key(connection, tenant, "benchmark").secret
        client = JobsClient(Server(self._stack.server.url, secret))
        return Tenant(client, client.upload(short_file(self._setup.work, items, model=MODEL))[0])

    def run_equal_tenants(self) -> Run:
        """Run one large job of each tenant at once."""
        items = self._setup.count(EQUAL_ITEMS, QUICK_EQUAL_ITEMS)
        tenants = [self.create_tenant(items) for _ in range(EQUAL_TENANTS)]
        started_s = time.perf_counter()
        batches = [tenant.client.start(tenant.file_id) for tenant in tenants]
        ends = [t.client.wait(b, is_terminal) for t, b in zip(tenants, batches, strict=True)]
        seconds = time.perf_counter() - started_s
        timings = [self._timing(batch) for batch in ends]
        began_s = min(timing.created_s for timing in timings)
        firsts = [timing.rows_s[0] - timing.created_s for timing in timings]
        before = [_items_before(timing, timings) for timing in timings]
        jain = jain_by_window(
            [timing.rows_s for timing in timings], began_s=began_s, window_s=WINDOW_S
        )
        facts = {
            "first_row_s": max(firsts),
            "items_before": max(before),
            "jain_min": min(jain[1:], default=1.0),
        }
        self._setup.note(
            f"equal tenants: first rows {_texts(firsts)} s, items before {before}, "
            f"Jain {_texts(jain)}"
        )
        return Run(items=items * len(tenants), seconds=seconds, cpu_s={}, facts=facts)

    def run_small_jobs(self, small: Tenant, *, whale_count: int) -> Run:
        """Run small jobs, one after the other, beside whales that have just begun."""
        items = self._setup.count(WHALE_ITEMS, QUICK_WHALE_ITEMS)
        whales = [self.create_tenant(items) for _ in range(whale_count)]
        done = self._succeeded()
        batches = [whale.client.start(whale.file_id) for whale in whales]
        while whales and self._succeeded() == done:
            time.sleep(POLL_S)
        started_s, ended = time.perf_counter(), []
        for _ in range(QUICK_SMALL_JOBS if self._setup.quick else SMALL_JOBS):
            ended.append(small.client.wait(small.client.start(small.file_id), is_terminal))
        seconds, done = time.perf_counter() - started_s, self._succeeded() - done
        for whale, batch in zip(whales, batches, strict=True):
            whale.client.cancel(batch)
        others = [self._timing(batch) for batch in batches]
        timings = [self._timing(batch) for batch in ended]
        times = [(timing.ended_s or 0.0) - timing.created_s for timing in timings]
        before = [_items_before(timing, others) for timing in timings]
        self._setup.note(
            f"{whale_count} whales, {done / seconds:,.0f} items/s: small jobs {_texts(times)} s, "
            f"validated after {_texts([t.began_s - t.created_s for t in timings])} s, "
            f"first rows after {_texts([t.rows_s[0] - t.created_s for t in timings])} s, "
            f"items before {before}"
        )
        facts = {
            "whales": whale_count,
            "median_s": median(times),
            "longest_s": max(times),
            "items_before": max(before),
        }
        return Run(items=max(1, done), seconds=seconds, cpu_s={}, facts=facts)

    def _succeeded(self) -> int:
        with self._engine.connect() as connection:
            return int(connection.scalar(_SUCCEEDED) or 0)

    def _timing(self, batch: Batch) -> Timing:
        with self._engine.connect() as connection:
            job = parse_public_id(JOB, batch.id)
            row = connection.execute(_JOB, {"job": job}).one()
            rows_s = list(connection.scalars(_TIMES, {"job": job}))
        return Timing(row.created_s, row.began_s or row.created_s, row.ended_s, rows_s)


@contextmanager
def _database(data: Path) -> Iterator[sa.Engine]:
    server = EmbeddedPostgres(data)
    server.prepare()
    settings = DatabaseSettings.model_validate({"url": server.url})
    engine = create_engine(settings, application_name="benchmark")
    try:
        yield engine
    finally:
        engine.dispose()


def _items_before(one: Timing, others: Sequence[Timing]) -> int:
    """Return the rows of others between the start of a job and its first row."""
    return sum(
        count_between(other.rows_s, one.began_s, one.rows_s[0])
        for other in others
        if other is not one and other.rows_s
    )


def _texts(values: Sequence[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def _rows(runs: Sequence[Run]) -> list[Row]:
    equal, alone, *beside = runs
    name = f"{EQUAL_TENANTS} equal tenants"
    rows = [
        Row(metric=f"{name}: last first row", unit="s", ours=equal.facts["first_row_s"]),
        Row(
            metric=f"{name}: items of others before it",
            unit="items",
            ours=equal.facts["items_before"],
            goal=FIRST_ROW_GOAL,
        ),
        Row(
            metric=f"{name}: Jain, least of all 5 s from the second on",
            unit="index",
            ours=equal.facts["jain_min"],
            goal=JAIN_GOAL,
        ),
        Row(metric="small jobs alone", unit="s", ours=alone.facts["median_s"]),
    ]
    for run in beside:
        name = f"small jobs beside {run.facts['whales']:.0f} whales"
        for which in ("median", "longest"):
            ratio = run.facts[f"{which}_s"] / alone.facts["median_s"]
            rows.append(Row(metric=f"{name}: {which}", unit="× alone", ours=ratio, goal=RATIO_GOAL))
        rows.append(
            Row(
                metric=f"{name}: items of others before the first row",
                unit="items",
                ours=run.facts["items_before"],
                goal=FIRST_ROW_GOAL,
            )
        )
    return rows
