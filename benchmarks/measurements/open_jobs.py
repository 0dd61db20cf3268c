"""CPU and statements of idle intakes while 100,000 jobs of 1,000 tenants are open.

What: real `intake` processes, one and then ten, on a real broker and database. No pool has a
replica and every window is full, so nothing can be emitted: all that is measured is the cost of
looking. Most jobs are expanded and wait; see `benchmarks.data.open_jobs`.

How: the processes start, and have read all jobs once their leases are taken. Then CPU and committed
transactions are read over 120 s, which hold two readings of all jobs (one a minute).

Goal: 0.2 of a core for each intake.
"""

import time
from pathlib import Path

import sqlalchemy as sa

from benchmarks.data.open_jobs import fill_open_jobs
from benchmarks.runs import Report, Row, Run, Setup
from benchmarks.stacks.services import Service, running_child, running_kafka, running_postgres
from benchmarks.statistics.cpu import cpu_by_role, cpu_used
from cli.stack.processes.role_children import role_child, shared_env
from cli.stack.processes.supervisor import Supervisor
from migrations.runner import upgrade
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings
from topics.clients.admin import TopicAdmin
from topics.records.catalogue import SHARED_TOPICS
from topics.settings import KafkaSettings

JOBS, QUICK_JOBS = 100_000, 2_000
TENANTS = 1_000
COUNTS = (1, 10)
WINDOW_S, QUICK_WINDOW_S = 120.0, 5.0
READY_S_MAX = 300.0
GOAL = "intake ≤ 0.2"

_COMMITS = sa.text("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
_LEASED = sa.text(
    "SELECT count(DISTINCT holder) FROM job_leases WHERE role = 'intake' AND expires_at > now()"
)


def measure(setup: Setup) -> Report:
    """Run the benchmark."""
    jobs = setup.count(JOBS, QUICK_JOBS)
    window_s = QUICK_WINDOW_S if setup.quick else WINDOW_S
    runs = []
    with (
        running_kafka(setup.work / "kafka") as kafka,
        running_postgres(setup.work / "postgres", "-c", "max_connections=300") as postgres,
    ):
        TopicAdmin(KafkaSettings(bootstrap_servers=kafka.address)).create(SHARED_TOPICS)
        upgrade(postgres.address)
        settings = DatabaseSettings.model_validate({"url": postgres.address})
        engine = create_engine(settings, application_name="benchmark")
        fill_open_jobs(engine, jobs=jobs, tenants=TENANTS)
        for count in COUNTS:
            setup.note(f"{count} intakes, {jobs} open jobs")
            folder = setup.work / f"intakes-{count}"
            runs.append(run_intakes(count, engine, kafka, postgres, folder, window_s))
        engine.dispose()
    return Report(name="open_jobs", rows=[row for run in runs for row in _rows(run)], runs=runs)


def run_intakes(
    count: int, engine: sa.Engine, kafka: Service, postgres: Service, folder: Path, window_s: float
) -> Run:
    """Measure `count` idle intakes for `window_s` seconds."""
    env = shared_env(kafka.address, postgres.address, folder, {})
    names = [f"intake-{number}" for number in range(count)]
    children = [role_child(name, "intake", env) for name in names]
    with running_child(children[0], folder / "logs") as supervisor:
        supervisor.start(children[1:])
        supervisor.wait_until(
            lambda: _scalar(engine, _LEASED) == count, timeout_s=READY_S_MAX, what="intake"
        )
        roots = {name: _pid(supervisor, name) for name in names} | postgres.roles
        before, commits = cpu_by_role(roots), _scalar(engine, _COMMITS)
        started_s = time.perf_counter()
        time.sleep(window_s)
        seconds = time.perf_counter() - started_s
        used = cpu_used(before, cpu_by_role(roots))
        commits = _scalar(engine, _COMMITS) - commits
    cpu_s = {"intake": sum(used[name] for name in names) / count, "postgres": used["postgres"]}
    return Run(items=count, seconds=seconds, cpu_s=cpu_s, facts={"transactions": commits})


def _pid(supervisor: Supervisor, name: str) -> int:
    pid = supervisor.pid(name)
    assert pid is not None, f"{name} ended"
    return pid


def _scalar(engine: sa.Engine, query: sa.TextClause) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(query) or 0)


def _rows(run: Run) -> list[Row]:
    name = f"{run.items} intakes"
    intake, postgres = (run.cpu_s[role] / run.seconds for role in ("intake", "postgres"))
    return [
        Row(metric=f"{name}: each", unit="cores", ours=intake, goal=GOAL),
        Row(metric=f"{name}: Postgres", unit="cores", ours=postgres),
        Row(
            metric=f"{name}: transactions",
            unit="1/s",
            ours=run.facts["transactions"] / run.seconds,
        ),
    ]
