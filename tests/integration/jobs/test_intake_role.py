"""Goal: the intake role moves jobs from `validating` to the log, within their windows."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from jobs import metrics
from jobs.__main__ import run
from jobs.store.outbox import NOTIFY_JOBS
from jobs.tables.jobs import job_cursors, job_leases, jobs
from registry.models import add_model
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import write_object
from storage.postgres.outbox import outbox
from tests.integration.jobs.log_reader import indexes, records_of
from tests.integration.jobs.rows import (
    add_job,
    add_running_job,
    add_tenant,
    execute,
    input_line,
)
from tests.support.capacity_records import capacity_record
from tests.support.until import until
from topics.clients.producer import RecordProducer
from topics.records.catalogue import BACKLOG, CAPACITY, EVENTS, RESULTS
from topics.records.codec import decode, kind_headers
from topics.records.scaling import Backlog
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
    sent = capacity_record("r", rate)

    def repeat() -> None:
        while not stop.wait(0.2):
            producer.send("capacity", sent.value, partition=0, key=sent.key, headers=sent.headers)

    replica = threading.Thread(target=repeat)
    replica.start()
    try:
        yield
    finally:
        stop.set()
        replica.join()


class Site:
    """Jobs whose input file is `in`, in a database that the role works on."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        with engine.begin() as connection:
            self.tenant_id = add_tenant(connection)
            add_model(
                connection,
                "small",
                "1",
                pool="pool-small",
                engine="simulated",
                endpoints=("/v1/embeddings",),
            )

    def add_jobs(self, count: int, *, tenant_id: UUID | None = None, **columns: Any) -> list[UUID]:
        given = {"input_key": "in"} | columns
        with self.engine.begin() as connection:
            owner = tenant_id or self.tenant_id
            job_ids = [add_job(connection, owner, **given) for _ in range(count)]
            connection.execute(NOTIFY_JOBS)
        return job_ids

    def rows(self) -> list[sa.Row[Any]]:
        """Return the jobs, oldest first."""
        with self.engine.begin() as connection:
            return list(connection.execute(sa.select(jobs).order_by(jobs.c.created_at)))

    def scalar(self, query: sa.Select[Any]) -> Any:
        with self.engine.begin() as connection:
            return connection.scalar(query)

    def emitted(self) -> int:
        return self.scalar(sa.select(sa.func.sum(job_cursors.c.item_index))) or 0


@pytest.fixture
def site(engine: sa.Engine) -> Site:
    return Site(engine)


def test_jobs_are_validated_and_expanded_within_the_window(
    site: Site,
    kafka: KafkaSettings,
    env: dict[str, str],
    store_lines: Callable[[str, int], None],
    producer: RecordProducer,
) -> None:
    store_lines("in", 1000)
    with running(env), pool_that_can_do(1e6, producer):
        site.add_jobs(1)
        until(lambda: site.emitted() == WINDOW)
        (job,) = site.rows()
        assert (job.state, job.total_count) == ("in_progress", 1000)
        execute(site.engine, "UPDATE job_counters SET succeeded = 300")
        until(lambda: site.emitted() == WINDOW + 300)
        execute(site.engine, "UPDATE job_counters SET succeeded = 800")
        until(lambda: site.emitted() == 1000)
    assert indexes(kafka) == list(range(1000))
    assert len(records_of(kafka, EVENTS)) == 1
    assert records_of(kafka, CAPACITY)


def test_the_backlog_is_published_until_the_work_has_ended(
    site: Site,
    kafka: KafkaSettings,
    env: dict[str, str],
    store_lines: Callable[[str, int], None],
) -> None:
    def published() -> list[Backlog]:
        records = records_of(kafka, BACKLOG)
        kind = kind_headers(Backlog)[0]
        return [decode(Backlog, one.value, one.headers) for one in records if kind in one.headers]

    store_lines("in", 1000)
    with running(env):
        (job_id,) = site.add_jobs(1)
        until(lambda: any(record.buckets for record in published()))
        (bucket,) = published()[-1].buckets
        (job,) = site.rows()
        assert (bucket.items, bucket.endpoint) == (1000, job.endpoint)
        assert bucket.prompt_tokens == job.estimated_prompt_tokens > 0
        assert bucket.output_tokens == 0
        execute(
            site.engine,
            sa.update(jobs)
            .where(jobs.c.id == job_id)
            .values(close_reason="cancelled", state="cancelling"),
        )
        until(lambda: not published()[-1].buckets)
    assert {record.pool for record in published()} == {"pool-small"}


def test_an_unknown_pool_gets_one_chunk(
    site: Site, env: dict[str, str], store_lines: Callable[[str, int], None]
) -> None:
    store_lines("in", 1000)
    with running(env):
        site.add_jobs(3)
        until(lambda: site.emitted() == 100)
        execute(
            site.engine,
            "UPDATE jobs SET close_reason = 'cancelled', state = 'cancelling' "
            "WHERE id IN (SELECT job_id FROM job_cursors WHERE item_index > 0)",
        )
        until(lambda: site.emitted() == 200)
    # A clean stop releases every lease.
    held = sa.select(job_leases.c.job_id).where(job_leases.c.expires_at > sa.func.now())
    assert site.scalar(held) is None


def test_a_tenant_is_served_although_another_fills_every_slot_and_the_budget(
    site: Site,
    env: dict[str, str],
    store_lines: Callable[[str, int], None],
    producer: RecordProducer,
) -> None:
    store_lines("in", 1000)
    with site.engine.begin() as connection:
        other = add_tenant(connection)
    slots = {"MILLRACE_INTAKE_JOBS_HELD_MAX": "2"}
    in_share = 200  # of its half, 250: a rest below a grain (62) is left for later
    with running(env | slots), pool_that_can_do(1e6, producer):
        site.add_jobs(5)
        until(lambda: site.emitted() == WINDOW)  # and then waits for results
        (late,) = site.add_jobs(1, tenant_id=other)
        until(lambda: site.emitted() == WINDOW + in_share)
    cursor = sa.select(job_cursors.c.item_index).where(job_cursors.c.job_id == late)
    assert site.scalar(cursor) == in_share


def test_a_job_is_validated_at_once_and_emitted_from_its_time_on(
    site: Site,
    kafka: KafkaSettings,
    env: dict[str, str],
    store_lines: Callable[[str, int], None],
    producer: RecordProducer,
) -> None:
    store_lines("in", 200)
    later = sa.func.now() + sa.text("interval '1 hour'")
    with running(env), pool_that_can_do(1e6, producer):
        (waiting,) = site.add_jobs(1, not_before=later)
        until(lambda: [job.state for job in site.rows()] == ["in_progress"])
        site.add_jobs(1)
        until(lambda: site.emitted() == 200)  # the rounds went on, without the first job
        held = sa.select(job_leases.c.job_id).where(job_leases.c.job_id == waiting)
        free = held.where(job_leases.c.expires_at <= sa.func.now())
        until(lambda: site.scalar(free) == waiting)  # that of its validation
        cursor = sa.select(job_cursors.c.item_index).where(job_cursors.c.job_id == waiting)
        assert site.scalar(cursor) == 0
        soon = sa.func.now() + sa.text("interval '1 second'")
        execute(site.engine, sa.update(jobs).values(not_before=soon))
        until(lambda: site.emitted() == 400)
        is_later = sa.select(job_cursors.c.job_id).where(
            job_cursors.c.job_id == waiting, sa.func.now() >= jobs.c.not_before
        )
        assert site.scalar(is_later.join(jobs, jobs.c.id == waiting)) == waiting


def test_a_job_that_cannot_end_in_time_is_relegated_behind_one_that_can(
    site: Site,
    env: dict[str, str],
    store_lines: Callable[[str, int], None],
    producer: RecordProducer,
) -> None:
    store_lines("in", 1000)

    def emitted(job_id: UUID) -> int:
        cursor = sa.select(job_cursors.c.item_index).where(job_cursors.c.job_id == job_id)
        return int(site.scalar(cursor))

    def add(count: int, seconds: int) -> UUID:
        expires_at = sa.text(f"now() + interval '{seconds} seconds'")
        with site.engine.begin() as connection:
            job_id = add_running_job(connection, site.tenant_id, count, expires_at=expires_at)
            connection.execute(NOTIFY_JOBS)
        return job_id

    with running(env), pool_that_can_do(10.0, producer):
        hopeless, feasible = add(1000, 61), add(300, 55)  # they need 100 s and 30 s
        until(lambda: metrics.JOBS_RELEGATED._value.get() == 1)
        before = emitted(hopeless)
        while emitted(feasible) < 270:  # its tail begins
            execute(
                site.engine,
                "UPDATE job_counters SET succeeded = item_index FROM job_cursors "
                "WHERE job_cursors.job_id = job_counters.job_id",
            )
        assert emitted(hopeless) - before < 100


def test_small_invalid_files_fail_while_a_large_one_is_validated(
    site: Site, env: dict[str, str], objects: LocalObjectStore
) -> None:
    with objects.begin_upload("large") as upload:
        for _ in range(100):
            upload.write(b"\n" * 1_000_000)  # each is a blank line to read
        upload.complete()
    write_object(objects, "in", input_line(0) + b"\njunk")
    site.add_jobs(1, input_key="large", input_bytes=100_000_000)
    with running(env):
        site.add_jobs(20)
        until(lambda: [job.state for job in site.rows()].count("failed") == 20)
        large, *small = site.rows()
    assert large.state == "validating"
    errors = [(job.error_count, job.errors[0]["code"]) for job in small]
    assert errors == [(1, "invalid_json_line")] * 20


def test_an_expired_job_is_closed_on_the_log(
    site: Site, kafka: KafkaSettings, env: dict[str, str], store_lines: Callable[[str, int], None]
) -> None:
    store_lines("in", 10)
    with running(env):
        (job_id,) = site.add_jobs(1, expires_at=sa.text("now() + interval '2 s'"))
        until(lambda: [job.state for job in site.rows()] == ["in_progress"])
        until(lambda: [job.close_reason for job in site.rows()] == ["expired"])
        until(lambda: site.scalar(sa.select(outbox.c.id).limit(1)) is None)
    (record,) = records_of(kafka, RESULTS)
    assert record.key == job_id.bytes
