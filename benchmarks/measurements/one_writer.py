"""What one results writer does for one job, whose outcomes are all on one partition of `results`.

What: a job of a million items, whose outcomes of 1 KB are on the log before the writer starts, so
that the writer alone bounds the rate. The role, the broker and the database are real; nothing else
runs. Further writers would not help: a partition has one reader.

How: rows by the database's clock, from the first to the last, and the rate of each tenth of them.
If the last tenth is as fast as the first, the rate does not depend on the size of the job, and a
job of 10 M items takes ten times as long. `--items` sets the size. CPU is that of the writer, the
broker and the database.

Goal: none is set. The row of 10 M items is the bound: no job ends faster than one writer writes.
"""

import time
from pathlib import Path

import sqlalchemy as sa

from benchmarks.data.outcome_topic import job_of, publish_outcomes
from benchmarks.data.result_records import add_job, check_settled
from benchmarks.runs import Report, Row, Run, Setup, VoidRunError
from benchmarks.stacks.services import running_child, running_kafka, running_postgres
from benchmarks.statistics.cpu import cpu_by_role, cpu_used
from benchmarks.statistics.pairing import role_rows
from cli.stack.processes.role_children import role_child, shared_env
from jobs.tables.jobs import jobs
from migrations.runner import upgrade
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings
from topics.clients.admin import TopicAdmin
from topics.records.catalogue import SHARED_TOPICS
from topics.settings import KafkaSettings

ITEMS, QUICK_ITEMS = 1_000_000, 100_000
LARGE_ITEMS = 10_000_000
WRITTEN_S_MAX = 1800.0
POLL_S = 0.5
PARTS = 10

_TIMES = sa.text(
    "SELECT extract(epoch FROM finished_at)::float8 AS at_s, count(*) AS items FROM items "
    "WHERE job_id = :job GROUP BY finished_at ORDER BY finished_at"
)


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    count = setup.count(ITEMS, QUICK_ITEMS)
    run = _run(setup, setup.work, count)
    facts = run.facts
    rows = [
        Row(metric=f"{count:,} items of one job", unit="rows/s", ours=run.rate),
        Row(metric="first tenth", unit="rows/s", ours=facts["part_0"]),
        Row(metric="last tenth", unit="rows/s", ours=facts[f"part_{PARTS - 1}"]),
        Row(metric="slowest tenth", unit="rows/s", ours=min(_parts(run))),
        Row(metric="10 M items at this rate", unit="s", ours=LARGE_ITEMS / run.rate),
        Row(metric="all processes", unit="µs CPU/item", ours=run.cpu_us),
        *role_rows([run], "one writer"),
    ]
    setup.note(f"rates by tenth: {' '.join(f'{rate:,.0f}' for rate in _parts(run))}")
    return Report(name="one_writer", rows=rows, runs=[run])


def _parts(run: Run) -> list[float]:
    return [run.facts[f"part_{number}"] for number in range(PARTS)]


def _run(setup: Setup, folder: Path, count: int) -> Run:
    with (
        running_kafka(folder / "kafka") as kafka,
        running_postgres(folder / "postgres") as postgres,
    ):
        upgrade(postgres.address)
        settings = KafkaSettings(bootstrap_servers=kafka.address)
        TopicAdmin(settings).create(SHARED_TOPICS)
        engine = create_engine(
            DatabaseSettings.model_validate({"url": postgres.address}),
            application_name="benchmark",
        )
        job_id = add_job(engine, total_count=count)
        with engine.connect() as connection:
            tenant_id = connection.scalar(sa.select(jobs.c.tenant_id).where(jobs.c.id == job_id))
        assert tenant_id is not None
        publish_outcomes(kafka.address, job_of(job_id, tenant_id), count)
        setup.note(f"{count:,} outcomes are on the log")
        env = shared_env(kafka.address, postgres.address, folder, {})
        with running_child(role_child("writer", "results-writer", env), folder / "logs") as child:
            pid = child.pid("writer")
            assert pid is not None
            roles = {**kafka.roles, **postgres.roles, "results-writer": pid}
            before = cpu_by_role(roles)
            give_up_at_s = time.monotonic() + WRITTEN_S_MAX
            settled = sa.select(jobs.c.settled_at).where(jobs.c.id == job_id)
            while _scalar(engine, settled) is None:
                if time.monotonic() > give_up_at_s:
                    raise VoidRunError("the writer has not written all rows")
                time.sleep(POLL_S)
            used = cpu_used(before, cpu_by_role(roles))
        check_settled(engine, job_id, count)
        with engine.connect() as connection:
            groups = [
                (float(row.at_s), int(row.items))
                for row in connection.execute(_TIMES, {"job": job_id})
            ]
        engine.dispose()
    return run_of(groups, used)


def run_of(groups: list[tuple[float, int]], cpu_s: dict[str, float]) -> Run:
    """Return the run of transactions, each with its time and its rows.

    The first transaction begins the time: its rows do not count in rates.
    """
    total = sum(rows for _, rows in groups)
    first_s, first_rows = groups[0]
    facts = {}
    written, start_s, start_rows, number = first_rows, first_s, first_rows, 0
    for at_s, rows in groups[1:]:
        written += rows
        if written >= first_rows + (number + 1) * (total - first_rows) / PARTS:
            facts[f"part_{number}"] = (written - start_rows) / max(1e-9, at_s - start_s)
            start_s, start_rows, number = at_s, written, number + 1
    for missing in range(number, PARTS):  # fewer transactions than parts
        facts[f"part_{missing}"] = facts.get(f"part_{number - 1}", 0.0)
    seconds = max(1e-9, groups[-1][0] - first_s)
    return Run(items=max(1, total - first_rows), seconds=seconds, cpu_s=cpu_s, facts=facts)


def _scalar(engine: sa.Engine, query: sa.Select[tuple[object]]) -> object:
    with engine.connect() as connection:
        return connection.scalar(query)
