"""A stack with a simulated GPU, tenants with weights, and the rows of their items.

Its broker and database are the benchmark's own, so that further batchers can join and rows can be
read. Times are those of the database: an item ends when the transaction with its row begins.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
from openai.types import Batch

from benchmarks.children.disciplines import FAIR, WHOLE_JOBS
from benchmarks.data.simulated_gpu import SimulatedGpu, options
from benchmarks.runs import VoidRunError
from benchmarks.stacks.load_runs import Server
from benchmarks.stacks.services import running_child, running_kafka, running_postgres
from benchmarks.stacks.stack import MILLRACE, RunningStack, running_stack
from benchmarks.stacks.stack_jobs import POLL_S, JobsClient
from cli.stack.processes.role_children import role_child, shared_env
from core.ids import JOB, parse_public_id
from jobs.tables.jobs import jobs
from storage.postgres.engines import create_engine
from storage.postgres.items import items
from storage.postgres.settings import DatabaseSettings
from tenancy.api_keys import create_key
from tenancy.tenant_changes import change_tenant_limits
from tenancy.tenants import create_tenant

BATCHER_READY_S = 15.0
"""A batcher that joins needs seconds, and rebalances the group of those that run."""

FIRST_ROWS_S_MAX = 120.0

_HEADROOM = "MILLRACE_ENGINE_INTERACTIVE_HEADROOM"
_EPOCH_S = sa.func.extract("epoch", items.c.finished_at)


class ItemRow(NamedTuple):
    """An item with its row."""

    finished_s: float  # seconds since the epoch
    input_tokens: int
    output_tokens: int


class LastRow(NamedTuple):
    """The items of a job that succeeded, and when the last of them ended."""

    items: int
    seconds: float  # after the creation of the job


@dataclass(frozen=True, slots=True)
class SchedulingStack:
    """A ready stack."""

    stack: RunningStack
    gpu: SimulatedGpu
    engine: sa.Engine
    kafka: str  # `host:port` of the broker

    def tenant(self, *, weight: int = 1, infeasible_jobs: str | None = None) -> JobsClient:
        """Create a tenant, and return a client with a key of it."""
        with self.engine.begin() as connection:
            tenant = create_tenant(connection, f"tenant-{time.time_ns()}")
            limits: dict[str, object] = {"weight": weight}
            if infeasible_jobs is not None:
                limits["infeasible_jobs"] = infeasible_jobs
            change_tenant_limits(connection, tenant, limits)
            secret = create_key(connection, tenant, "benchmark").secret
        return JobsClient(Server(self.stack.server.url, secret))

    def now_s(self) -> float:
        """Return the database's time."""
        with self.engine.connect() as connection:
            now = sa.select(sa.func.extract("epoch", sa.func.clock_timestamp()))
            return float(connection.scalar(now) or 0)

    def rows(
        self, batches: Sequence[Batch], since_s: float = 0.0, until_s: float = 1e12
    ) -> list[ItemRow]:
        """Return the items of these jobs that succeeded in an interval, in order."""
        query = (
            sa.select(_EPOCH_S, items.c.input_tokens, items.c.output_tokens)
            .where(
                items.c.job_id.in_([parse_public_id(JOB, batch.id) for batch in batches]),
                items.c.outcome == 1,
                items.c.finished_at > sa.func.to_timestamp(since_s),
                items.c.finished_at <= sa.func.to_timestamp(until_s),
            )
            .order_by(items.c.finished_at)
        )
        with self.engine.connect() as connection:
            return [ItemRow(float(row[0]), row[1], row[2]) for row in connection.execute(query)]

    def engine_s(self, rows: Sequence[ItemRow]) -> float:
        """Return the time of the full engine that the items took."""
        return sum(self.gpu.seconds(row.input_tokens, row.output_tokens) for row in rows)

    def job_seconds(self, batch: Batch) -> float | None:
        """Return the seconds from the creation of a job to its completion; None while it runs."""
        ended = sa.func.extract("epoch", jobs.c.completed_at - jobs.c.created_at)
        job = sa.select(ended).where(jobs.c.id == parse_public_id(JOB, batch.id))
        with self.engine.connect() as connection:
            seconds = connection.scalar(job)
        return None if seconds is None else float(seconds)

    def settled_after_s(self, batch: Batch, now_s: float) -> float:
        """Return the seconds from the creation of a job to its last row, or to now without it."""
        ended = sa.func.coalesce(jobs.c.settled_at, jobs.c.failed_at, sa.func.to_timestamp(now_s))
        age = sa.func.extract("epoch", ended - jobs.c.created_at)
        job = sa.select(age).where(jobs.c.id == parse_public_id(JOB, batch.id))
        with self.engine.connect() as connection:
            return float(connection.scalar(job) or 0)

    def wait_for_end(self, batch: Batch, s_max: float) -> float | None:
        """Return the seconds that a job took; None if it has not ended after `s_max`."""
        give_up_at_s = time.monotonic() + s_max
        while (seconds := self.job_seconds(batch)) is None and time.monotonic() < give_up_at_s:
            time.sleep(POLL_S)
        return seconds

    def last_rows(self, batches: Sequence[Batch]) -> dict[str, LastRow]:
        """Return what succeeded of each job by its public id; jobs without rows are absent."""
        ids = {parse_public_id(JOB, batch.id): batch.id for batch in batches}
        created = sa.func.extract("epoch", jobs.c.created_at)
        last = sa.func.max(items.c.finished_at)
        query = (
            sa.select(items.c.job_id, sa.func.count(), sa.func.extract("epoch", last) - created)
            .join(jobs, jobs.c.id == items.c.job_id)
            .where(items.c.job_id.in_([*ids]), items.c.outcome == 1)
            .group_by(items.c.job_id, jobs.c.created_at)
        )
        with self.engine.connect() as connection:
            rows = connection.execute(query).all()
        return {ids[row[0]]: LastRow(int(row[1]), float(row[2])) for row in rows}

    def wait_for_rows(self, batches: Sequence[Batch]) -> None:
        """Return once the jobs have a row. Raises VoidRunError."""
        give_up_at_s = time.monotonic() + FIRST_ROWS_S_MAX
        while not self.rows(batches):
            if time.monotonic() > give_up_at_s:
                raise VoidRunError("no item has ended")
            time.sleep(POLL_S)


@contextmanager
def scheduling_stack(  # noqa: PLR0913  each one is an option
    folder: Path,
    gpu: SimulatedGpu,
    *,
    discipline: str = FAIR,
    batcher_count: int = 1,
    headroom: int | None = 0,
    env: Mapping[str, str] | None = None,
    engine_options: Sequence[str] = (),
) -> Iterator[SchedulingStack]:
    """Run a stack for a block, with `batcher_count` bulk batchers.

    A `headroom` of None is the default of the engine. `engine_options` of `millrace up` replace the
    simulated GPU. Raises VoidRunError.
    """
    with ExitStack() as closing:
        kafka = closing.enter_context(running_kafka(folder / "kafka"))
        database = running_postgres(folder / "postgres", "-c", "max_connections=200")
        postgres = closing.enter_context(database)
        variables = shared_env(kafka.address, postgres.address, folder, {})
        if not engine_options:
            variables |= gpu.env
        if headroom is not None:
            variables[_HEADROOM] = str(headroom)
        program: Sequence[str] = MILLRACE
        if discipline != FAIR:
            program = ("benchmarks.children.role_stack", "batcher", discipline)
            variables |= WHOLE_JOBS
        variables |= env or {}
        stack = closing.enter_context(
            running_stack(
                folder / "stack", *(engine_options or options()), env=variables, program=program
            )
        )
        for number in range(1, batcher_count):
            child = role_child(f"batcher-{number}", "batcher", variables)
            closing.enter_context(running_child(child, folder / "logs"))
        if batcher_count > 1:
            time.sleep(BATCHER_READY_S)
        settings = DatabaseSettings.model_validate({"url": postgres.address})
        engine = create_engine(settings, application_name="benchmark")
        closing.callback(engine.dispose)
        yield SchedulingStack(stack, gpu, engine, kafka.address)
