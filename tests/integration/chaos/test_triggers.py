"""Goal: the triggers record every violation that is planted in a real database."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from chaos.checkers.fencing import backward_moves, zombie_writes
from chaos.checkers.results import Usage
from chaos.checkers.states import illegal_transitions
from chaos.observations import database, triggers
from chaos.verification.lifecycle import GRAPH
from core.ids import JOB, public_id
from storage.postgres.tenant_isolation import restrict_to_tenant
from tests.integration.jobs.rows import add_job, add_tenant

HOSTS = [f"host_{uuid.uuid4().hex[:8]}" for _ in range(2)]


@dataclass
class JobDatabase:
    """A database with one job, and a database user for each of two hosts."""

    engine: sa.Engine
    job: UUID

    def act(self, host: str, *statements: str) -> None:
        """Run statements as the database user of a host."""
        with self.engine.begin() as connection:
            connection.exec_driver_sql(f"SET SESSION AUTHORIZATION {host}")
            for statement in statements:
                connection.execute(sa.text(statement), {"job": self.job})
            connection.exec_driver_sql("RESET SESSION AUTHORIZATION")


@pytest.fixture
def job_database(database_url: str) -> Iterator[JobDatabase]:
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for host in HOSTS:
            connection.exec_driver_sql(f"CREATE ROLE {host} SUPERUSER")
        job = add_job(connection, add_tenant(connection))
    triggers.install_triggers(engine)
    yield JobDatabase(engine, job)
    with engine.begin() as connection:
        for host in HOSTS:
            connection.exec_driver_sql(f"DROP ROLE {host}")
    engine.dispose()


def claim(epoch: int) -> str:
    return (
        "INSERT INTO job_leases (job_id, role, holder, epoch, expires_at) "
        f"VALUES (:job, 'intake', 'h', {epoch}, now()) "
        "ON CONFLICT (job_id, role) DO UPDATE SET epoch = excluded.epoch"
    )


def move(index: int) -> str:
    return f"UPDATE job_cursors SET item_index = {index} WHERE job_id = :job"


def test_a_write_from_an_old_epoch_is_found(job_database: JobDatabase) -> None:
    first, second = HOSTS
    job_database.act(first, claim(1), move(100))
    job_database.act(second, claim(2), move(200))
    assert zombie_writes(triggers.lease_events(job_database.engine)) == []

    job_database.act(first, move(300))

    (late,) = zombie_writes(triggers.lease_events(job_database.engine))
    assert (late.user, late.role, late.epoch) == (first, "intake", 2)


def test_only_leases_of_unlocked_unfinished_jobs_can_be_lost(job_database: JobDatabase) -> None:
    first, second = HOSTS
    later = "UPDATE job_leases SET expires_at = now() + interval '1 min' WHERE job_id = :job"
    job_database.act(first, claim(1), later)
    assert database.losable_lease_count(job_database.engine, "intake", first) == 1
    assert database.losable_lease_count(job_database.engine, "intake", second) == 0
    assert database.losable_lease_count(job_database.engine, "finaliser", first) == 0
    with job_database.engine.begin() as busy:
        busy.execute(sa.text("SELECT FROM job_leases FOR UPDATE"))
        assert database.losable_lease_count(job_database.engine, "intake", first) == 0
    job_database.act(first, "UPDATE jobs SET state = 'failed', failed_at = now() WHERE id = :job")
    assert database.losable_lease_count(job_database.engine, "intake", first) == 0


def test_a_validation_from_an_old_epoch_is_found(job_database: JobDatabase) -> None:
    first, second = HOSTS
    job_database.act(first, claim(1))
    job_database.act(second, claim(2))
    begin = "UPDATE jobs SET state = 'in_progress', in_progress_at = now() WHERE id = :job"
    job_database.act(first, begin)

    (late,) = zombie_writes(triggers.lease_events(job_database.engine))
    assert late.user == first


def test_an_unfenced_write_of_the_holder_is_found(job_database: JobDatabase) -> None:
    lock = "SELECT 1 FROM job_leases WHERE job_id = :job AND role = 'intake' FOR UPDATE"
    first, _ = HOSTS
    job_database.act(first, claim(1))
    job_database.act(first, lock, move(100))
    assert zombie_writes(triggers.lease_events(job_database.engine)) == []

    job_database.act(first, move(200))

    (late,) = zombie_writes(triggers.lease_events(job_database.engine))
    assert not late.is_fenced


@pytest.mark.parametrize(("total_count", "role"), [(None, "intake"), (3, "finaliser")])
def test_the_end_of_a_cancelled_job_needs_the_lease(
    job_database: JobDatabase, total_count: int | None, role: str
) -> None:
    cancelling = (
        "UPDATE jobs SET state = 'cancelling', cancelling_at = now(), "
        f"total_count = {total_count or 'NULL'} WHERE id = :job"
    )
    end = (
        "UPDATE jobs SET state = 'cancelled', cancelled_at = now(), "
        "total_count = coalesce(total_count, 0) WHERE id = :job"
    )
    first, second = HOSTS
    taken = claim(1).replace("'intake'", f"'{role}'")
    job_database.act(first, taken)
    job_database.act(second, claim(2).replace("'intake'", f"'{role}'"))
    job_database.act(first, cancelling, end)

    late = zombie_writes(triggers.lease_events(job_database.engine))
    assert (late[-1].user, late[-1].role) == (first, role)


def test_a_backward_cursor_is_found(job_database: JobDatabase) -> None:
    job_database.act(HOSTS[0], claim(1), move(100), move(50))

    (back,) = backward_moves(triggers.cursor_moves(job_database.engine))
    assert (back.old, back.new) == (100, 50)


def test_changes_by_a_tenants_role_are_recorded(job_database: JobDatabase) -> None:
    with job_database.engine.begin() as connection:
        query = sa.text("SELECT tenant_id FROM jobs WHERE id = :job")
        tenant_id: UUID = connection.execute(query, {"job": job_database.job}).scalar_one()
        restrict_to_tenant(connection, tenant_id)
        cancel = "UPDATE jobs SET state = 'cancelling', cancelling_at = now() WHERE id = :job"
        connection.execute(sa.text(cancel), {"job": job_database.job})

    (step,) = triggers.transitions(job_database.engine)
    assert (step.old, step.new) == ("validating", "cancelling")


def test_transitions_that_the_database_accepts_are_checked(job_database: JobDatabase) -> None:
    """The database refuses illegal transitions, so its own triggers are disabled here."""
    begin = "UPDATE jobs SET state = 'in_progress', in_progress_at = now() WHERE id = :job"
    job_database.act(HOSTS[0], begin)
    assert illegal_transitions(triggers.transitions(job_database.engine), GRAPH) == []
    skip = "UPDATE jobs SET state = 'completed' WHERE id = :job"
    restamp = "UPDATE jobs SET in_progress_at = now() + interval '1 s' WHERE id = :job"
    with pytest.raises(DBAPIError):
        job_database.act(HOSTS[0], skip)
    with job_database.engine.begin() as connection:
        guards = connection.execute(
            sa.text(
                "SELECT tgname FROM pg_trigger WHERE tgrelid = 'jobs'::regclass "
                "AND NOT tgisinternal AND tgname <> 'chaos_note'"
            )
        ).scalars()
        for guard in guards.all():
            connection.exec_driver_sql(f"ALTER TABLE jobs DISABLE TRIGGER {guard}")
    job_database.act(HOSTS[0], restamp)
    job_database.act(HOSTS[0], skip)

    (stamped, skipped) = illegal_transitions(triggers.transitions(job_database.engine), GRAPH)
    assert stamped.changed_stamps == ["in_progress_at"]
    assert (skipped.old, skipped.new) == ("in_progress", "completed")


def test_an_unfinished_job_is_read_as_unfinished(job_database: JobDatabase) -> None:
    engine, job = job_database.engine, public_id(JOB, job_database.job)
    assert database.job_states(engine) == {job: "validating"}
    assert database.unfinished_count(engine, 0, 4e9) == 1
    assert [found["id"] for found in database.unfinished_jobs(engine)] == [str(job_database.job)]
    assert database.ended_s(engine, job) == database.job_timings(engine, [job])[job].took_s == inf
    assert database.succeeded_count(engine) == database.counter_tally(engine, job).total == 0
    assert database.billed_usage(engine, job) == Usage()
    assert database.held_lease_count(engine, "intake", HOSTS[0]) == 0
