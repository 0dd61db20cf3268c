"""Goal: after a restore of Postgres to an earlier moment and `millrace recover`, every job
completes.
"""

import subprocess
from pathlib import Path

import pytest
import sqlalchemy as sa
from openai import OpenAI
from openai.types import Batch
from typer.testing import CliRunner

from cli.main import app
from cli.stack.services.embedded_postgres import binaries
from core.ids import JOB, parse_public_id
from jobs.tables.jobs import jobs
from tenancy.tables import usage_ledger
from tests.conftest import execute, with_database
from tests.support.job_checks import (
    assert_conserved,
    chat_line,
    create,
    ended,
    lines_of,
    outcomes_of,
    submit,
    upload,
    watch,
)
from tests.support.stacks import Stack, running_stack

pytestmark = pytest.mark.timeout(480)

OPTIONS = ("--simulated-latency-ms", "20", "--simulated-concurrency", "24")
COUNT, SMALL, GROUPED = 3000, 300, 900
PREFIXES = [f"{name} speaks of its own. " * 30 for name in "abcd"]


def dump(url: str, to: Path) -> None:
    """Take a backup while the stack runs."""
    command = [f"{binaries()}/pg_dump", "--format=custom", f"--file={to}", libpq(url)]
    subprocess.run(command, check=True, timeout=60)


def restore(url: str, backup: Path) -> None:
    """Restore the database to the moment of `backup`."""
    name = sa.make_url(url).database
    server = with_database(url, "postgres")
    execute(server, f"DROP DATABASE {name} WITH (FORCE)")
    execute(server, f"CREATE DATABASE {name}")
    command = [f"{binaries()}/pg_restore", f"--dbname={libpq(url)}", str(backup)]
    subprocess.run(command, check=True, timeout=60)


def libpq(url: str) -> str:
    return sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def control(stack: Stack, job: Batch, action: str) -> None:
    stack.request("POST", f"/v1/batches/{job.id}/{action}").raise_for_status()


def done(job: Batch) -> int:
    return job.request_counts.completed if job.request_counts else 0


def state_of(engine: sa.Engine, job: Batch) -> tuple[str, bool]:
    """The state of a job, and whether it is paused."""
    with engine.connect() as connection:
        query = sa.select(jobs.c.state, jobs.c.paused_at.is_not(None))
        row = connection.execute(query.where(jobs.c.id == parse_public_id(JOB, job.id))).one()
        return row[0], row[1]


def billed(engine: sa.Engine, job: Batch) -> tuple[int, int, int]:
    """The ledger of a job: items, input tokens, output tokens."""
    names = ("item_count", "input_tokens", "output_tokens")
    sums = [sa.func.coalesce(sa.func.sum(usage_ledger.c[name]), 0) for name in names]
    with engine.connect() as connection:
        query = sa.select(*sums).where(usage_ledger.c.job_id == parse_public_id(JOB, job.id))
        items, given, made = connection.execute(query).one()
    return int(items), int(given), int(made)


def submit_grouped(client: OpenAI, model: str) -> Batch:
    """Create a job whose prompts share prefixes in turn, which intake emits in another order."""
    lines = [chat_line(n, model, text=PREFIXES[n % len(PREFIXES)]) for n in range(GROUPED)]
    return create(client, upload(client, b"".join(lines)))


def has_order(engine: sa.Engine, job: Batch) -> bool:
    """Whether a job is emitted in an order of its own."""
    with engine.connect() as connection:
        query = sa.select(jobs.c.order_saved_tokens)
        row = connection.execute(query.where(jobs.c.id == parse_public_id(JOB, job.id))).one()
        return row[0] is not None


def test_a_restored_database_is_completed_from_the_log(
    tmp_path: Path,
    kafka_bootstrap: str,
    database_url: str,
    topic_prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MILLRACE_KAFKA_BOOTSTRAP_SERVERS", kafka_bootstrap)
    monkeypatch.setenv("MILLRACE_KAFKA_TOPIC_PREFIX", topic_prefix)
    monkeypatch.setenv("MILLRACE_DATABASE_URL", database_url)
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    backup = tmp_path / "backup"
    with running_stack(tmp_path / "data", *OPTIONS) as stack:
        client = stack.client
        large, stopped = (submit(client, stack.model, COUNT) for _ in range(2))
        grouped = submit_grouped(client, stack.model)
        small = submit(client, stack.model, SMALL)
        control(stack, small, "pause")
        watch(client, stopped.id, lambda job: job.status == "in_progress")
        watch(client, small.id, lambda job: job.status == "in_progress")
        watch(client, large.id, lambda job: done(job) > COUNT // 20)
        watch(client, grouped.id, lambda job: job.status == "in_progress")
        dump(database_url, backup)
        # Not in the backup: a cancellation, an end, and control versions of two jobs.
        client.batches.cancel(stopped.id)
        control(stack, small, "resume")
        for action in ("pause", "resume"):
            control(stack, large, action)
        small = watch(client, small.id, ended, 180)
        before = lines_of(client, small.output_file_id)
        watch(client, large.id, lambda job: done(job) > COUNT // 3)
        watch(client, stopped.id, ended)
        watch(client, grouped.id, ended)  # with it go the lines in its order

    restore(database_url, backup)
    assert [state_of(engine, job) for job in (large, small, stopped)] == [
        ("in_progress", False),
        ("in_progress", True),
        ("in_progress", False),
    ]
    assert (state_of(engine, grouped), has_order(engine, grouped)) == (("in_progress", False), True)
    recovered = CliRunner().invoke(app, ["recover"])
    assert recovered.exit_code == 0, recovered.output
    assert recovered.stdout.startswith("jobs 4 records ")

    with running_stack(tmp_path / "data", *OPTIONS) as stack:
        client = stack.client
        counts = ((large, COUNT), (small, SMALL), (stopped, COUNT), (grouped, GROUPED))
        for job, count in counts:
            finished = watch(client, job.id, ended, 180)
            assert_conserved(client, finished, count)
            assert finished.usage is not None
            outcomes = outcomes_of(finished)
            used = (finished.usage.input_tokens, finished.usage.output_tokens)
            assert billed(engine, finished) == (outcomes["succeeded"], *used)
            audit = stack.request("GET", f"/v1/batches/{job.id}/audit?log=true").json()
            assert audit["ok"], audit["differences"]
            if job is stopped:
                assert outcomes["cancelled"] > 0
            else:
                assert outcomes["succeeded"] == count
        # The job is paused in the backup: its results were read from the log, not computed again.
        shown = client.batches.retrieve(small.id)
        assert lines_of(client, shown.output_file_id) == before
    engine.dispose()
