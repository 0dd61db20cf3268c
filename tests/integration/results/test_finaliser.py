"""Goal: several settled jobs are finalised at once, and a failing one does not block the others."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from core.errors import LeaseLostError, MillraceError
from core.ids import new_uuid
from core.object_names import answer_prefix
from core.states import JobState
from jobs.leasing.active_leases import ActiveLeases
from jobs.leasing.leases import Lease
from jobs.store.files import NewFile, delete_file, insert_file
from jobs.supervised_threads import SupervisedThreads
from jobs.tables.files import files
from jobs.tables.jobs import job_leases, jobs
from results import metrics
from results.finaliser.finalisation import READY, finalise
from results.finaliser.finaliser import CHANNEL, ROLE, Finaliser
from results.finaliser.item_rows import RowNotFoundError
from results.retention import object_removal
from results.retention.object_removal import FileRemoval
from results.settings import FinaliserSettings
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from storage.objects.errors import ObjectStoreRefusedError, ObjectStoreUnavailableError
from storage.objects.local_object_store import LocalObjectStore
from storage.postgres.engines import DATABASE_UNAVAILABLE
from storage.postgres.notifications import NotificationListener
from storage.postgres.settings import DatabaseSettings
from tests.integration.results.outcomes import add_running_job, job, new_engine, outcome
from tests.support.until import until

DEADLINE_S = 30


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "objects", clock=SystemClock())


def finaliser(
    engine: sa.Engine, store: LocalObjectStore, holder: str, **settings: Any
) -> Finaliser:
    limits = FinaliserSettings(**settings)
    return Finaliser(
        engine=engine,
        store=store,
        leases=ActiveLeases(engine, role=ROLE, holder=holder, ttl_s=limits.lease_s),
        settings=limits,
        clock=SystemClock(),
    )


@contextmanager
def running(role: Finaliser, database_url: str) -> Iterator[None]:
    stop = threading.Event()
    database = DatabaseSettings(url=database_url)  # type: ignore[arg-type]
    with NotificationListener(database, CHANNEL) as notifications:
        thread = threading.Thread(target=role.run, args=(notifications, stop))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


def settle(engine: sa.Engine, **columns: Any) -> UUID:
    job_id = add_running_job(engine, 3, **columns)
    items = [outcome(n) for n in range(3)]
    ItemWriter(engine, DayPartitions(engine)).write({job_id: items})
    return job_id


def put(store: LocalObjectStore, key: str) -> None:
    with store.begin_upload(key) as upload:
        upload.write(b"{}")
        upload.complete()


def removed_count(engine: sa.Engine) -> int:
    query = sa.select(sa.func.count()).where(files.c.removed_at.is_not(None))
    with engine.connect() as connection:
        return connection.scalar(query) or 0


def test_two_processes_finalise_every_job_once(
    engine: sa.Engine, database_url: str, store: LocalObjectStore
) -> None:
    other_engine = new_engine(database_url)
    job_ids = [settle(engine) for _ in range(12)]

    with (
        running(finaliser(engine, store, "one"), database_url),
        running(finaliser(other_engine, store, "two"), database_url),
    ):
        until(lambda: all(job(engine, job_id)["state"] == "completed" for job_id in job_ids))
    other_engine.dispose()

    assert len(list(store.list("results/"))) == len(job_ids)


def test_notification_wakes_the_finaliser(
    engine: sa.Engine, database_url: str, store: LocalObjectStore
) -> None:
    with running(finaliser(engine, store, "one", look_interval_s=5), database_url):
        for _ in range(3):
            job_id, settled_at = settle(engine), time.monotonic()
            until(lambda job_id=job_id: job(engine, job_id)["state"] == "completed")  # type: ignore[misc]
            assert time.monotonic() - settled_at < 4


def test_failing_job_blocks_no_other(
    engine: sa.Engine, database_url: str, store: LocalObjectStore
) -> None:
    broken = add_running_job(
        engine, 5, state="cancelling", close_reason="cancelled", settled_at=sa.func.now()
    )  # settled by a bug: it has no rows

    with running(finaliser(engine, store, "one", jobs_max=1), database_url):
        good = [settle(engine) for _ in range(3)]
        until(lambda: all(job(engine, job_id)["state"] == "completed" for job_id in good))

    assert job(engine, broken)["state"] == "cancelling"


def test_heartbeats_extend_a_lease_and_report_its_loss(engine: sa.Engine) -> None:
    settle(engine)
    leases = ActiveLeases(engine, role=ROLE, holder="a", ttl_s=3)
    (lease,) = leases.claim(READY, 1)
    stop = threading.Event()
    background = SupervisedThreads(stop, away_s_max=1, clock=SystemClock())
    background.start_periodic(leases.heartbeat_s, "heartbeat", leases.extend_all)
    try:
        with engine.connect() as connection:
            query = sa.select(job_leases.c.expires_at)
            first = connection.scalar(query)
            connection.rollback()

            def extended() -> bool:
                connection.rollback()
                return bool(connection.scalar(query) != first)

            until(extended)
        leases.raise_if_lost(lease)

        with engine.begin() as connection:  # another process claims it
            connection.execute(sa.update(job_leases).values(epoch=2, holder="b"))
        until(lambda: not leases._active)
        with pytest.raises(LeaseLostError):
            leases.raise_if_lost(lease)
    finally:
        stop.set()
        background.join(5)


def test_role_ends_when_the_database_stays_unavailable(store: LocalObjectStore) -> None:
    nowhere = "postgresql://127.0.0.1:1/none"
    role = finaliser(new_engine(nowhere), store, "one", database_wait_s=0.3, look_interval_s=0.1)
    database = DatabaseSettings(url=nowhere)  # type: ignore[arg-type]

    with (
        NotificationListener(database, CHANNEL) as notifications,
        pytest.raises(DATABASE_UNAVAILABLE),
    ):
        role.run(notifications, threading.Event())


def test_oversized_answers_are_removed_at_the_end_of_their_job(
    engine: sa.Engine, database_url: str, store: LocalObjectStore
) -> None:
    job_id = add_running_job(engine, 2)
    other = f"{answer_prefix(new_uuid())}a"
    used, repeated = (f"{answer_prefix(job_id)}{name}" for name in ("a", "b"))
    for key in (used, repeated, other):
        put(store, key)
    answers = [outcome(0, body=b"", body_key=used), outcome(1)]
    ItemWriter(engine, DayPartitions(engine)).write({job_id: answers})

    with running(finaliser(engine, store, "one"), database_url):
        until(lambda: [found.key for found in store.list("answers/")] == [other])

    ended = job(engine, job_id)
    assert ended["state"] == "completed"
    with engine.connect() as connection:
        wanted = sa.select(files.c.object_key).where(files.c.id == ended["output_file_id"])
        key = connection.scalars(wanted).one()
    assert b'"body":{}}' in b"".join(store.read(key))


def test_objects_of_deleted_files_are_removed_after_the_last_reader(
    engine: sa.Engine, database_url: str, store: LocalObjectStore
) -> None:
    job_id = add_running_job(engine, 3)
    tenant_id = job(engine, job_id)["tenant_id"]
    long_ago = sa.text("now() - interval '1 hour'")

    def add(name: str) -> UUID:
        put(store, f"files/{name}")
        with engine.begin() as connection:
            new = NewFile(
                file_id=new_uuid(),
                tenant_id=tenant_id,
                purpose="batch",
                filename=name,
                object_key=f"files/{name}",
                size_bytes=1,
                sha256="",
                expires_after_s=None,
            )
            insert_file(connection, new)
        return new.file_id

    def kept() -> set[str]:
        return {found.key for found in store.list("files/")}

    add("visible")
    deleted, pinned = add("deleted"), add("pinned")
    with engine.begin() as connection:
        for file_id in (deleted, pinned):
            delete_file(connection, tenant_id, file_id)
        gone = files.c.deleted_at.is_not(None)
        connection.execute(sa.update(files).values(expires_at=long_ago).where(gone))
        connection.execute(sa.update(jobs).values(input_file_id=pinned))
    removed = metrics.FILES_REMOVED._value.get()

    with running(finaliser(engine, store, "one", removal_interval_s=0.1), database_url):
        until(lambda: kept() == {"files/visible", "files/pinned"})
        ItemWriter(engine, DayPartitions(engine)).write({job_id: [outcome(n) for n in range(3)]})
        until(lambda: kept() == {"files/visible"})
        until(lambda: removed_count(engine) == 2)

    assert metrics.FILES_REMOVED._value.get() == removed + 2
    assert job(engine, job_id)["state"] == "completed"


def test_removal_is_repeated_when_the_store_is_unavailable(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = add_running_job(engine, 1, state="completed", completed_at=sa.func.now())
    with engine.begin() as connection:
        connection.execute(sa.update(files).values(expires_at=sa.text("now() - interval '1 d'")))
        (key,) = connection.scalars(sa.select(files.c.object_key))
    put(store, key)

    def unavailable(_: str) -> None:
        raise ObjectStoreUnavailableError

    with monkeypatch.context() as ailing:
        ailing.setattr(store, "delete", unavailable)
        FileRemoval(engine, store).run_once()
    assert removed_count(engine) == 0
    FileRemoval(engine, store).run_once()
    assert removed_count(engine) == 1
    assert list(store.list("")) == []
    assert job(engine, job_id)["state"] == "completed"


def test_refused_files_block_no_others(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_removal, "ROUND_FILES_MAX", 2)
    for _ in range(5):
        add_running_job(engine, 1, state="completed", completed_at=sa.func.now())
    with engine.begin() as connection:
        for n, file_id in enumerate(connection.scalars(sa.select(files.c.id)).all()):
            changes = {
                "object_key": f"files/{n}",
                "expires_at": sa.text(f"now() - interval '{9 - n} d'"),
            }
            connection.execute(sa.update(files).where(files.c.id == file_id).values(changes))
    for n in range(5):
        put(store, f"files/{n}")
    delete, refused = store.delete, {"files/0", "files/1", "files/3"}

    def refusing(key: str) -> None:
        if key in refused:
            raise ObjectStoreRefusedError
        delete(key)

    monkeypatch.setattr(store, "delete", refusing)
    role = FileRemoval(engine, store)
    for _ in range(3):
        role.run_once()
    assert {found.key for found in store.list("")} == refused
    refused.clear()  # its operator has acted
    for _ in range(3):
        role.run_once()
    assert list(store.list("")) == []
    assert removed_count(engine) == 5


def test_one_run_removes_all_due_files(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_removal, "ROUND_FILES_MAX", 2)
    for _ in range(5):
        add_running_job(engine, 1, state="completed", completed_at=sa.func.now())
    with engine.begin() as connection:
        connection.execute(sa.update(files).values(expires_at=sa.text("now() - interval '1 d'")))
    stops = iter([True])
    FileRemoval(engine, store, lambda: next(stops)).run_once()
    assert removed_count(engine) == 2
    FileRemoval(engine, store).run_once()
    assert removed_count(engine) == 5


def test_last_thread_is_reserved_for_other_tenants(
    engine: sa.Engine, database_url: str, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, other = [settle(engine) for _ in range(3)], settle(engine)
    tenant_id = job(engine, long[0])["tenant_id"]
    with engine.begin() as connection:
        its = sa.update(jobs).where(jobs.c.id.in_(long))
        connection.execute(its.values(tenant_id=tenant_id))
    begun: list[UUID] = []
    go_on = threading.Event()

    def blocked_finalise(
        engine: sa.Engine, store: LocalObjectStore, lease: Lease, **given: Any
    ) -> JobState:
        if lease.job_id in long:
            begun.append(lease.job_id)
            assert go_on.wait(DEADLINE_S)
        return finalise(engine, store, lease, **given)

    monkeypatch.setattr("results.finaliser.finaliser.finalise", blocked_finalise)
    role = finaliser(engine, store, "one", jobs_max=2, look_interval_s=0.05)
    with running(role, database_url):
        until(lambda: begun and job(engine, other)["state"] == "completed")
        late = settle(engine)
        until(lambda: job(engine, late)["state"] == "completed")
        assert len(begun) == 1
        go_on.set()
        until(lambda: all(job(engine, job_id)["state"] == "completed" for job_id in long))


def test_failing_job_is_retried_with_backoff(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(engine)
    failures: list[MillraceError] = [
        RowNotFoundError(),
        RowNotFoundError(),
        ObjectStoreUnavailableError(),
    ]
    failures += [RowNotFoundError()]

    def failing(*_: Any, **__: Any) -> JobState:
        raise failures.pop(0)

    monkeypatch.setattr("results.finaliser.finaliser.finalise", failing)
    role = finaliser(engine, store, "one", lease_s=100)
    left_s = sa.select(sa.extract("epoch", job_leases.c.expires_at - sa.func.clock_timestamp()))
    rests = []
    while failures:
        (lease,) = role.leases.claim(READY, 1)
        role._finalise(lease)
        with engine.begin() as connection:
            rests.append(round(float(connection.scalar(left_s) or 0), -2))
            connection.execute(sa.update(job_leases).values(expires_at=sa.func.now()))
    assert rests == [100, 200, 100, 400]
    assert role.leases.count == 0
