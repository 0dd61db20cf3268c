"""Goal: settled jobs end, several at once, and one that fails does not stop the others."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from core.errors import LeaseLostError
from jobs.leases import claim
from jobs.tables import job_leases
from results.finaliser import CHANNEL, ROLE, Finaliser
from results.finalising import READY
from results.held_leases import HeldLeases
from results.partitions import DayPartitions
from results.settings import FinaliserSettings
from results.writing import ItemWriter
from storage.local_objects import LocalObjects
from storage.notifications import Notifications
from storage.postgres import DATABASE_AWAY
from storage.settings import DatabaseSettings
from tests.integration.results.outcomes import add_running_job, engine_of, job, outcome

DEADLINE_S = 30


@pytest.fixture
def store(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path / "objects", clock=SystemClock())


def finaliser(engine: sa.Engine, store: LocalObjects, holder: str, **settings: Any) -> Finaliser:
    limits = FinaliserSettings(**settings)
    return Finaliser(
        engine=engine,
        store=store,
        leases=HeldLeases(engine, ttl_s=limits.lease_s),
        settings=limits,
        holder=holder,
    )


@contextmanager
def running(role: Finaliser, database_url: str) -> Iterator[None]:
    stop = threading.Event()
    database = DatabaseSettings(url=database_url)  # type: ignore[arg-type]
    with Notifications(database, CHANNEL) as notifications:
        thread = threading.Thread(target=role.run, args=(notifications, stop))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


def until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def settle(engine: sa.Engine, **columns: Any) -> UUID:
    job_id = add_running_job(engine, 3, **columns)
    items = [outcome(n) for n in range(3)]
    ItemWriter(engine, DayPartitions(engine)).write({job_id: items})
    return job_id


def test_two_processes_end_every_job_once(
    engine: sa.Engine, database_url: str, store: LocalObjects
) -> None:
    other_engine = engine_of(database_url)
    job_ids = [settle(engine) for _ in range(12)]

    with (
        running(finaliser(engine, store, "one"), database_url),
        running(finaliser(other_engine, store, "two"), database_url),
    ):
        until(lambda: all(job(engine, job_id)["state"] == "completed" for job_id in job_ids))
    other_engine.dispose()

    assert len(list(store.list("results/"))) == len(job_ids)


def test_a_settled_job_is_heard_of_at_once(
    engine: sa.Engine, database_url: str, store: LocalObjects
) -> None:
    with running(finaliser(engine, store, "one", look_interval_s=5), database_url):
        for _ in range(3):
            job_id, settled_at = settle(engine), time.monotonic()
            until(lambda job_id=job_id: job(engine, job_id)["state"] == "completed")  # type: ignore[misc]
            assert time.monotonic() - settled_at < 4


def test_a_job_that_cannot_end_stops_no_other(
    engine: sa.Engine, database_url: str, store: LocalObjects
) -> None:
    broken = add_running_job(
        engine, 5, state="cancelling", close_reason="cancelled", settled_at=sa.func.now()
    )  # settled by a bug: it has no rows

    with running(finaliser(engine, store, "one", jobs_max=1), database_url):
        good = [settle(engine) for _ in range(3)]
        until(lambda: all(job(engine, job_id)["state"] == "completed" for job_id in good))

    assert job(engine, broken)["state"] == "cancelling"


def test_heartbeats_keep_a_lease_and_tell_of_its_loss(engine: sa.Engine) -> None:
    settle(engine)
    with engine.begin() as connection:
        (lease,) = claim(connection, role=ROLE, holder="a", ttl_s=3, limit=1, where=READY)
    with HeldLeases(engine, ttl_s=3) as leases:
        leases.add(lease)
        with engine.connect() as connection:
            query = sa.select(job_leases.c.expires_at)
            first = connection.scalar(query)
            connection.rollback()

            def extended() -> bool:
                connection.rollback()
                return bool(connection.scalar(query) != first)

            until(extended)
        leases.check(lease)

        with engine.begin() as connection:  # a rival takes it
            connection.execute(sa.update(job_leases).values(epoch=2, holder="b"))
        until(lambda: not leases._held)
        with pytest.raises(LeaseLostError):
            leases.check(lease)


def test_a_database_that_stays_away_ends_the_role(store: LocalObjects) -> None:
    nowhere = "postgresql://127.0.0.1:1/none"
    role = finaliser(engine_of(nowhere), store, "one", database_wait_s=0.3, look_interval_s=0.1)
    database = DatabaseSettings(url=nowhere)  # type: ignore[arg-type]

    with Notifications(database, CHANNEL) as notifications, pytest.raises(DATABASE_AWAY):
        role.run(notifications, threading.Event())
