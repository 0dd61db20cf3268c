"""A6: whether tenants get the shares of a pool that their weights say, with one batcher and three.

What: one pool of 20 ms × 64. Six equal tenants, and then eight with weights 1 to 4, create a job
each at the same time, every one with more items than run while it is measured. The partitions of
the tenants, and so the batchers that they wait at, are random.

How: the rows of each tenant in 12 s by the database's clock, from 4 s after the last first row on,
divided by its weight. Jain's index is 1 when all are equal. The gap is the largest difference of
two tenants, in seconds of what a tenant gets.

Goal: an index of 0.99; a gap of one window in flight (0.5 s) with one batcher, 1 s more with three.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from openai.types import Batch

from benchmarks.data.input_files import short_file
from benchmarks.runs import Report, Row, Run, Setup, VoidRunError
from benchmarks.stacks.load_runs import Server
from benchmarks.stacks.services import Service, running_child, running_kafka, running_postgres
from benchmarks.stacks.stack import running_stack
from benchmarks.stacks.stack_jobs import POLL_S, JobsClient
from benchmarks.statistics.fairness import jain_index
from cli.stack.processes.role_children import role_child, shared_env
from core.ids import JOB, parse_public_id
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings
from tenancy.api_keys import create_key
from tenancy.tenant_changes import change_tenant_limits
from tenancy.tenants import create_tenant

MODEL = "simulated"
LATENCY_MS, CONCURRENCY = 20, 64
BATCHERS = (1, 3)
WEIGHTS = {"six equal tenants": (1,) * 6, "eight tenants, weights 1 to 4": (1, 1, 2, 2, 3, 3, 4, 4)}
ITEMS, QUICK_ITEMS = 30_000, 3_000
SETTLING_S, QUICK_SETTLING_S = 4.0, 1.0
MEASURED_S, QUICK_MEASURED_S = 12.0, 1.0
BATCHER_READY_S = 15.0
"""A batcher that joins needs seconds, and rebalances the group of those that run."""

FIRST_ROWS_S_MAX = 120.0
GOAL = "≥ 0.99"
GAP_GOALS = {1: "≤ 0.5", 3: "≤ 1.5"}

_ROWS = sa.text(
    "SELECT count(*) FROM items WHERE job_id = :job AND finished_at > to_timestamp(:since_s) "
    "AND finished_at <= to_timestamp(:until_s)"
)
_HAS_ROWS = sa.text("SELECT EXISTS (SELECT FROM items WHERE job_id = :job)")
_NOW = sa.text("SELECT extract(epoch FROM now())::float8")


@dataclass(frozen=True, slots=True)
class Services:
    """A broker and a database of this benchmark's own."""

    kafka: Service
    postgres: Service

    def env(self, folder: Path) -> dict[str, str]:
        """Return the variables that name them."""
        return shared_env(self.kafka.address, self.postgres.address, folder, {})


def measure(setup: Setup) -> Report:
    """Run the benchmark."""
    runs, rows = [], []
    for count in BATCHERS:
        folder = setup.work / f"batchers-{count}"
        with _stack(folder, batcher_count=count) as (server, engine):
            for name, weights in WEIGHTS.items():
                run = _run(setup, server, engine, weights)
                what = f"{count} batcher{'s' if count > 1 else ''}, {name}"
                setup.note(f"{what}: {run.facts}")
                runs.append(run)
                rows += _rows(what, run, GAP_GOALS[count])
    return Report(name="tenant_shares", rows=rows, runs=runs)


@contextmanager
def _stack(folder: Path, *, batcher_count: int) -> Iterator[tuple[Server, sa.Engine]]:
    """Run a stack, and further batchers beside it."""
    options = (
        *("--simulated-latency-ms", str(LATENCY_MS)),
        *("--simulated-concurrency", str(CONCURRENCY)),
    )
    with ExitStack() as closing:
        services = Services(
            closing.enter_context(running_kafka(folder / "kafka")),
            closing.enter_context(
                running_postgres(folder / "postgres", "-c", "max_connections=200")
            ),
        )
        env = services.env(folder) | {"MILLRACE_ENGINE_INTERACTIVE_HEADROOM": "0"}
        stack = closing.enter_context(running_stack(folder / "stack", *options, env=env))
        for number in range(1, batcher_count):
            child = role_child(f"batcher-{number}", "batcher", env)
            closing.enter_context(running_child(child, folder / "logs"))
        if batcher_count > 1:
            time.sleep(BATCHER_READY_S)
        settings = DatabaseSettings.model_validate({"url": services.postgres.address})
        engine = create_engine(settings, application_name="benchmark")
        closing.callback(engine.dispose)
        yield stack.server, engine


def _run(setup: Setup, server: Server, engine: sa.Engine, weights: Sequence[int]) -> Run:
    """Run one large job of each tenant at once, and cancel them after the measurement."""
    file = short_file(setup.work, setup.count(ITEMS, QUICK_ITEMS), model=MODEL)
    clients = [_tenant_client(server, engine, weight) for weight in weights]
    files = [client.upload(file)[0] for client in clients]
    with ThreadPoolExecutor(len(clients)) as pool:
        batches = list(pool.map(lambda one: one[0].start(one[1]), zip(clients, files, strict=True)))
    give_up_at_s = time.monotonic() + FIRST_ROWS_S_MAX
    while not all(_scalar(engine, _HAS_ROWS, batch) for batch in batches):
        if time.monotonic() > give_up_at_s:
            raise VoidRunError("a tenant got no row")
        time.sleep(POLL_S)
    time.sleep(QUICK_SETTLING_S if setup.quick else SETTLING_S)
    with engine.connect() as connection:
        since_s = float(connection.scalar(_NOW) or 0)
    seconds = QUICK_MEASURED_S if setup.quick else MEASURED_S
    time.sleep(seconds + 1)  # rows are written after their items have ended
    window = {"since_s": since_s, "until_s": since_s + seconds}
    counts = [_scalar(engine, _ROWS, batch, **window) for batch in batches]
    for client, batch in zip(clients, batches, strict=True):
        client.cancel(batch)
    shares = [count / weight for count, weight in zip(counts, weights, strict=True)]
    mean = sum(shares) / len(shares)
    facts = {
        "jain": jain_index(shares),
        "gap_s": (max(shares) - min(shares)) / (mean / seconds) if mean else seconds,
        "items_per_s": sum(counts) / seconds,
    }
    setup.note(f"items {counts}")
    return Run(items=max(1, sum(counts)), seconds=seconds, cpu_s={}, facts=facts)


def _tenant_client(server: Server, engine: sa.Engine, weight: int) -> JobsClient:
    with engine.begin() as connection:
        tenant = create_tenant(connection, f"weight-{weight}-{time.time_ns()}")
        change_tenant_limits(connection, tenant, {"weight": weight})
        secret = create_key(connection, tenant, "benchmark").secret
    return JobsClient(Server(server.url, secret))


def _scalar(engine: sa.Engine, query: sa.TextClause, batch: Batch, **bound: float) -> int:
    with engine.connect() as connection:
        job = parse_public_id(JOB, batch.id)
        return int(connection.scalar(query, {"job": job, **bound}) or 0)


def _rows(what: str, run: Run, gap_goal: str) -> list[Row]:
    return [
        Row(metric=f"{what}: Jain's index", unit="index", ours=run.facts["jain"], goal=GOAL),
        Row(metric=f"{what}: gap", unit="s", ours=run.facts["gap_s"], goal=gap_goal),
        Row(metric=f"{what}: items", unit="1/s", ours=run.facts["items_per_s"]),
    ]
