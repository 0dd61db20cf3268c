"""Goal: the intake role moves jobs from `validating` to the log, through crashes without loss."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
import sqlalchemy as sa

from jobs.__main__ import run
from jobs.tables.jobs import job_cursors, jobs
from jobs.tables.outbox import outbox
from registry.models import add_model
from storage.objects.local_object_store import LocalObjectStore
from tests.integration.jobs.log_reader import indexes, records_of
from tests.integration.jobs.rows import add_job, add_tenant, input_line, job_row
from tests.support.until import until
from topics.clients.producer import RecordProducer
from topics.records.catalogue import CAPACITY, EVENTS, RESULTS
from topics.records.codec import encode, kind_headers
from topics.records.records import Capacity
from topics.settings import KafkaSettings

WINDOW = 500


@pytest.fixture
def env(database_url: str, kafka: KafkaSettings, tmp_path: Path) -> dict[str, str]:
    return {
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "MILLRACE_KAFKA_TOPIC_PREFIX": kafka.topic_prefix,
        "MILLRACE_DATABASE_URL": database_url,
        "MILLRACE_OBJECTS_ROOT": str(tmp_path / "objects"),
        "MILLRACE_INTAKE_LEASE_TTL_S": "1",
        "MILLRACE_INTAKE_WINDOW_ITEMS_MAX": str(WINDOW),
        "MILLRACE_INTAKE_EXPIRY_INTERVAL_S": "0.1",
    }


@contextlib.contextmanager
def running(env: dict[str, str]) -> Iterator[None]:
    """Run the role in a thread; fail if it raises."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def body() -> None:
        try:
            run(env, stop)
        except Exception as failure:  # noqa: BLE001  asserted below
            failures.append(failure)

    role = threading.Thread(target=body)
    role.start()
    try:
        yield
    finally:
        stop.set()
        role.join(30)
    assert not failures


@contextlib.contextmanager
def pool_that_can_do(rate: float, producer: RecordProducer) -> Iterator[None]:
    """Run a replica that publishes its capacity repeatedly."""
    stop = threading.Event()
    capacity = Capacity("r", 1, "pool-small", "bulk", [0], {}, rate, 8)

    def repeat() -> None:
        while not stop.wait(0.2):
            producer.send(
                "capacity",
                encode(capacity),
                partition=0,
                key=b"r",
                headers=kind_headers(Capacity),
            )

    replica = threading.Thread(target=repeat)
    replica.start()
    try:
        yield
    finally:
        stop.set()
        replica.join()


def add_jobs(engine: sa.Engine, count: int, **columns: object) -> list[UUID]:
    with engine.begin() as connection:
        add_model(
            connection,
            "small",
            "1",
            pool="pool-small",
            engine="simulated",
            endpoints=("/v1/embeddings",),
        )
        tenant_id = add_tenant(connection)
        job_ids = [add_job(connection, tenant_id, input_key="in", **columns) for _ in range(count)]
        connection.execute(sa.text("SELECT pg_notify('millrace_jobs', '')"))
    return job_ids


def states(engine: sa.Engine) -> list[str]:
    with engine.begin() as connection:
        return list(connection.scalars(sa.select(jobs.c.state).order_by(jobs.c.created_at)))


def emitted(engine: sa.Engine) -> int:
    with engine.begin() as connection:
        return connection.scalar(sa.select(sa.func.sum(job_cursors.c.item_index))) or 0


def test_jobs_are_validated_and_expanded_within_the_window(
    engine: sa.Engine,
    kafka: KafkaSettings,
    env: dict[str, str],
    store_lines: Callable[[str, int], None],
    producer: RecordProducer,
) -> None:
    store_lines("in", 1000)
    with running(env), pool_that_can_do(1e6, producer):
        (job_id,) = add_jobs(engine, 1)
        until(lambda: emitted(engine) == WINDOW)
        with engine.begin() as connection:
            job = job_row(connection, job_id)
            connection.execute(sa.text("UPDATE job_counters SET succeeded = 300"))
        assert (job.state, job.total_count) == ("in_progress", 1000)
        until(lambda: emitted(engine) == WINDOW + 300)
        with engine.begin() as connection:
            connection.execute(sa.text("UPDATE job_counters SET succeeded = 800"))
        until(lambda: emitted(engine) == 1000)
    assert indexes(kafka) == list(range(1000))
    assert len(records_of(kafka, EVENTS)) == 1
    assert records_of(kafka, CAPACITY)


def test_an_unknown_pool_gets_one_chunk(
    engine: sa.Engine,
    env: dict[str, str],
    store_lines: Callable[[str, int], None],
) -> None:
    store_lines("in", 1000)
    with running(env):
        add_jobs(engine, 3)
        until(lambda: emitted(engine) == 100)
        with engine.begin() as connection:
            connection.execute(
                sa.text(
                    "UPDATE jobs SET close_reason = 'cancelled', state = "
                    "'cancelling' WHERE id IN (SELECT job_id FROM job_cursors "
                    "WHERE item_index > 0)"
                )
            )
        until(lambda: emitted(engine) == 200)
    with engine.begin() as connection:  # a clean stop releases every lease
        held = connection.scalar(
            sa.text("SELECT count(*) FROM job_leases WHERE expires_at > now()")
        )
    assert held == 0


def test_a_tenant_is_served_although_another_fills_every_slot(
    engine: sa.Engine,
    env: dict[str, str],
    store_lines: Callable[[str, int], None],
) -> None:
    store_lines("in", 1000)
    with running(env | {"MILLRACE_INTAKE_JOBS_HELD_MAX": "2"}):
        add_jobs(engine, 5)
        until(lambda: emitted(engine) == 100)  # and then waits for results
        with engine.begin() as connection:
            late = add_job(connection, add_tenant(connection), input_key="in")
            connection.execute(sa.text("SELECT pg_notify('millrace_jobs', '')"))
        until(lambda: emitted(engine) == 200)
        with engine.begin() as connection:
            cursor = sa.select(job_cursors.c.item_index).where(job_cursors.c.job_id == late)
            assert connection.scalar(cursor) == 100


def test_small_invalid_files_fail_while_a_large_one_is_validated(
    engine: sa.Engine,
    env: dict[str, str],
    objects: LocalObjectStore,
) -> None:
    with objects.begin_upload("large") as upload:
        for _ in range(100):
            upload.write(b"\n" * 1_000_000)  # each is a blank line to read
        upload.complete()
    with objects.begin_upload("in") as upload:
        upload.write(input_line(0) + b"\njunk")
        upload.complete()
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        add_job(connection, tenant_id, input_key="large", input_bytes=100_000_000)
    with running(env):
        job_ids = add_jobs(engine, 20)
        until(lambda: states(engine).count("failed") == 20)
        assert states(engine)[0] == "validating"
        with engine.begin() as connection:
            found = [job_row(connection, job_id) for job_id in job_ids]
    assert [(job.error_count, job.errors[0]["code"]) for job in found] == [
        (1, "invalid_json_line")
    ] * 20


def test_an_expired_job_is_closed_on_the_log(
    engine: sa.Engine,
    kafka: KafkaSettings,
    env: dict[str, str],
    store_lines: Callable[[str, int], None],
) -> None:
    store_lines("in", 10)
    with running(env):
        (job_id,) = add_jobs(engine, 1, expires_at=sa.text("now() + interval '2 s'"))
        until(lambda: states(engine) == ["in_progress"])
        until(lambda: _close_reason(engine, job_id) == "expired")
        until(lambda: _outbox_is_empty(engine))
    (record,) = records_of(kafka, RESULTS)
    assert record.key == job_id.bytes


def test_killed_processes_lose_no_item(
    engine: sa.Engine,
    kafka: KafkaSettings,
    env: dict[str, str],
    store_lines: Callable[[str, int], None],
) -> None:
    """Kill the process several times; the last one completes."""
    store_lines("in", 100)
    add_jobs(engine, 12)

    def settle_everything() -> None:
        """Act as the results writer, so that windows are free again."""
        with engine.begin() as connection:
            connection.execute(
                sa.text(
                    "UPDATE job_counters SET succeeded = item_index FROM job_cursors "
                    "WHERE job_cursors.job_id = job_counters.job_id"
                )
            )

    for goal in (1, 400, 800, 1200):
        process = subprocess.Popen(
            [sys.executable, "-m", "jobs"], env={"PATH": os.environ["PATH"], **env}
        )
        try:

            def reached(goal: int = goal) -> bool:
                settle_everything()
                return emitted(engine) >= goal

            until(reached, timeout_s=30)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(10)
    assert set(states(engine)) == {"in_progress"}
    found = indexes(kafka)
    assert {index: found.count(index) >= 12 for index in found} == dict.fromkeys(range(100), True)


def _close_reason(engine: sa.Engine, job_id: UUID) -> str | None:
    with engine.begin() as connection:
        reason: str | None = job_row(connection, job_id).close_reason
    return reason


def _outbox_is_empty(engine: sa.Engine) -> bool:
    with engine.begin() as connection:
        return not connection.scalar(sa.select(sa.func.count()).select_from(outbox))
