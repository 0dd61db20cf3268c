"""Goal: several settled jobs are finalised at once, and a failing one does not block the others."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
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
from jobs.store.files import delete_file
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
from storage.objects.errors import ObjectStoreUnavailableError
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import write_object
from storage.postgres.engines import DATABASE_UNAVAILABLE
from storage.postgres.notifications import NotificationListener
from storage.postgres.settings import DatabaseSettings
from tests.integration.jobs.rows import add_file
from tests.integration.results.outcomes import (
    add_running_job,
    count,
    days_ago,
    execute,
    job,
    keys,
    new_engine,
    outcome,
    record_deletions,
    scalars,
    settle,
    write,
)
from tests.support.until import until

DEADLINE_S = 30
OUTCOMES = [outcome(0), outcome(1), outcome(2)]


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


def removed_count(engine: sa.Engine) -> int:
    return count(engine, files, files.c.removed_at.is_not(None))


def all_completed(engine: sa.Engine, *job_ids: UUID) -> bool:
    return all(job(engine, job_id)["state"] == "completed" for job_id in job_ids)


def test_two_processes_finalise_every_job_once(
    engine: sa.Engine, database_url: str, store: LocalObjectStore
) -> None:
    other_engine = new_engine(database_url)
    job_ids = [settle(engine, *OUTCOMES) for _ in range(12)]

    with (
        running(finaliser(engine, store, "one"), database_url),
        running(finaliser(other_engine, store, "two"), database_url),
    ):
        until(lambda: all_completed(engine, *job_ids))
    other_engine.dispose()

    assert len(keys(store, "results/")) == len(job_ids)


def test_notification_wakes_the_finaliser(
    engine: sa.Engine, database_url: str, store: LocalObjectStore
) -> None:
    with running(finaliser(engine, store, "one", look_interval_s=10), database_url):
        for _ in range(3):
            job_id = settle(engine, *OUTCOMES)
            until(partial(all_completed, engine, job_id), timeout_s=8)  # less than the interval


def test_failing_job_blocks_no_other(
    engine: sa.Engine, database_url: str, store: LocalObjectStore
) -> None:
    broken = add_running_job(
        engine, 5, state="cancelling", close_reason="cancelled", settled_at=sa.func.now()
    )  # settled by a bug: it has no rows

    with running(finaliser(engine, store, "one", jobs_max=1), database_url):
        good = [settle(engine, *OUTCOMES) for _ in range(3)]
        until(lambda: all_completed(engine, *good))

    assert job(engine, broken)["state"] == "cancelling"


def test_heartbeats_extend_a_lease_and_report_its_loss(engine: sa.Engine) -> None:
    settle(engine, *OUTCOMES)
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

        # Another process claims it.
        execute(engine, sa.update(job_leases).values(epoch=2, holder="b"))
        until(lambda: not leases._active)
        with pytest.raises(LeaseLostError):
            leases.raise_if_lost(lease)
    finally:
        stop.set()
        background.join(20)


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
        write_object(store, key, b"{}")
    write(engine, job_id, outcome(0, body=b"", body_key=used), outcome(1))

    with running(finaliser(engine, store, "one"), database_url):
        until(lambda: keys(store, "answers/") == {other})

    ended = job(engine, job_id)
    assert ended["state"] == "completed"
    wanted = sa.select(files.c.object_key).where(files.c.id == ended["output_file_id"])
    (key,) = scalars(engine, wanted)
    assert b'"body":{}}' in b"".join(store.read(key))


def test_objects_of_deleted_files_are_removed_after_the_last_reader(
    engine: sa.Engine, database_url: str, store: LocalObjectStore
) -> None:
    job_id = add_running_job(engine, 3)
    tenant_id = job(engine, job_id)["tenant_id"]
    removed = metrics.FILES_REMOVED._value.get()
    with engine.begin() as connection:
        for name in ("visible", "deleted", "pinned"):
            write_object(store, f"files/{name}", b"{}")
            file = add_file(connection, tenant_id, object_key=f"files/{name}")
            if name != "visible":
                delete_file(connection, tenant_id, file.id)
        gone = files.c.deleted_at.is_not(None)
        connection.execute(sa.update(files).values(expires_at=days_ago(1)).where(gone))
        connection.execute(sa.update(jobs).values(input_file_id=file.id))

    with running(finaliser(engine, store, "one", removal_interval_s=0.1), database_url):
        until(lambda: keys(store, "files/") == {"files/visible", "files/pinned"})
        write(engine, job_id, *OUTCOMES)
        until(lambda: keys(store, "files/") == {"files/visible"})
        until(lambda: removed_count(engine) == 2)

    assert metrics.FILES_REMOVED._value.get() == removed + 2
    assert job(engine, job_id)["state"] == "completed"


def test_removal_is_repeated_when_the_store_is_unavailable(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = add_running_job(engine, 1, state="completed", completed_at=sa.func.now())
    execute(engine, sa.update(files).values(expires_at=days_ago(1)))
    (key,) = scalars(engine, sa.select(files.c.object_key))
    write_object(store, key, b"{}")

    def unavailable(_: str) -> None:
        raise ObjectStoreUnavailableError

    with monkeypatch.context() as ailing:
        ailing.setattr(store, "delete", unavailable)
        FileRemoval(engine, store).run_once()
    assert removed_count(engine) == 0
    FileRemoval(engine, store).run_once()
    assert removed_count(engine) == 1
    assert keys(store) == set()
    assert job(engine, job_id)["state"] == "completed"


def test_refused_files_block_no_others(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_removal, "ROUND_FILES_MAX", 2)
    for _ in range(5):
        add_running_job(engine, 1, state="completed", completed_at=sa.func.now())
    for n, file_id in enumerate(scalars(engine, sa.select(files.c.id))):
        changes = {"object_key": f"files/{n}", "expires_at": days_ago(9 - n)}
        execute(engine, sa.update(files).where(files.c.id == file_id).values(changes))
        write_object(store, f"files/{n}", b"{}")
    refused = {"files/0", "files/1", "files/3"}
    record_deletions(monkeypatch, store, refused)
    role = FileRemoval(engine, store)
    for _ in range(3):
        role.run_once()
    assert keys(store) == refused
    refused.clear()  # its operator has acted
    for _ in range(3):
        role.run_once()
    assert keys(store) == set()
    assert removed_count(engine) == 5


def test_one_run_removes_all_due_files(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_removal, "ROUND_FILES_MAX", 2)
    for _ in range(5):
        add_running_job(engine, 1, state="completed", completed_at=sa.func.now())
    execute(engine, sa.update(files).values(expires_at=days_ago(1)))
    stops = iter([True])
    FileRemoval(engine, store, lambda: next(stops)).run_once()
    assert removed_count(engine) == 2
    FileRemoval(engine, store).run_once()
    assert removed_count(engine) == 5


def test_last_thread_is_reserved_for_other_tenants(
    engine: sa.Engine, database_url: str, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, other = [settle(engine, *OUTCOMES) for _ in range(3)], settle(engine, *OUTCOMES)
    tenant_id = job(engine, long[0])["tenant_id"]
    execute(engine, sa.update(jobs).where(jobs.c.id.in_(long)).values(tenant_id=tenant_id))
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
        until(lambda: begun and all_completed(engine, other))
        late = settle(engine, *OUTCOMES)
        until(lambda: all_completed(engine, late))
        assert len(begun) == 1
        go_on.set()
        until(lambda: all_completed(engine, *long))


def test_failing_job_is_retried_with_backoff(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(engine, *OUTCOMES)
    missing = RowNotFoundError()
    failures: list[MillraceError] = [missing, missing, ObjectStoreUnavailableError(), missing]

    def failing(*_: Any, **__: Any) -> JobState:
        raise failures.pop(0)

    monkeypatch.setattr("results.finaliser.finaliser.finalise", failing)
    role = finaliser(engine, store, "one", lease_s=100)
    left_s = sa.select(sa.extract("epoch", job_leases.c.expires_at - sa.func.clock_timestamp()))
    rests = []
    while failures:
        (lease,) = role.leases.claim(READY, 1)
        role._finalise(lease)
        rests.append(round(float(scalars(engine, left_s)[0]), -2))
        execute(engine, sa.update(job_leases).values(expires_at=sa.func.now()))
    assert rests == [100, 200, 0, 400]  # a failure of the store: ten seconds at most
    assert role.leases.count == 0
