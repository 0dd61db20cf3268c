"""Goal: a tenant's batches wait during its quarantine on their pool, and go on after it."""

from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.ids import new_uuid
from jobs import metrics
from jobs.leasing.leases import release
from jobs.recovery.quarantine_sweep import QuarantineSweep
from jobs.store.controls import pause_job, resume_job
from jobs.store.tenant_quarantines import end_quarantine, list_quarantines, start_quarantine
from jobs.tables.quarantines import tenant_quarantines
from jobs.validation.verdicts import VALIDATION_DUE, record_verdict
from tenancy.installation_log import INSTALLATION, Operator
from tenancy.tables import audit_log
from tests.integration.jobs.resuming_process import COUNT, Intake
from tests.integration.jobs.rows import (
    add_job,
    add_running_job,
    add_tenant,
    claim_lease,
    execute,
    job_row,
)
from tests.integration.jobs.stores import Stores
from tests.integration.jobs.test_verdicts import VALID

HOUR_S = 3600.0


class QuarantinedIntake(Intake):
    """Intake with a tenant that is or was in quarantine."""

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self.sweep = QuarantineSweep(self.engine)

    def start(self, duration_s: float = HOUR_S) -> UUID:
        """Start the quarantine of the tenant and apply it; return its id."""
        with self.engine.begin() as connection:
            start_quarantine(connection, job_row(connection, self.job_id), duration_s)
            (found,) = list_quarantines(connection)
        self.sweep.run_once()
        quarantine_id: UUID = found.id
        return quarantine_id

    def end_by_time(self, _: UUID) -> None:
        passed = sa.update(tenant_quarantines).values(ends_at=sa.func.now())
        execute(self.engine, passed)
        self.sweep.run_once()

    def end_by_operator(self, quarantine_id: UUID) -> None:
        with self.engine.begin() as connection:
            assert end_quarantine(connection, quarantine_id, Operator("opkey_1", "::1", "req_1"))
        self.sweep.run_once()

    def add_batch(self) -> UUID:
        """Add a further batch of the tenant whose file was just validated; return its id."""
        with self.engine.begin() as connection:
            job_id = add_job(connection, self.tenant_id, input_key="in")
            lease = claim_lease(connection, "intake", VALIDATION_DUE)
            record_verdict(connection, lease, VALID)
            release(connection, lease)
        return job_id

    def until(self, job_id: UUID) -> object:
        with self.engine.begin() as connection:
            return job_row(connection, job_id).quarantined_until


@pytest.fixture
def intake(stores: Stores, store_lines: Callable[[str, int], None]) -> Iterator[QuarantinedIntake]:
    store_lines("in", COUNT)
    intake = QuarantinedIntake(stores)
    yield intake
    intake.jobs.close()


ENDS = pytest.mark.parametrize(
    "end", [QuarantinedIntake.end_by_time, QuarantinedIntake.end_by_operator]
)


@ENDS
def test_a_running_batch_waits_and_goes_on_with_what_did_not_run(
    intake: QuarantinedIntake, end: Callable[[QuarantinedIntake, UUID], None]
) -> None:
    intake.lease_jobs()
    intake.expand(100)
    quarantine_id = intake.start()
    intake.lease_jobs()
    intake.resumes.run_once()
    assert (intake.loads(), intake.jobs.ids) == ([], frozenset())
    (waiting,) = intake.controls()
    assert (waiting.paused, waiting.void_below) == (True, 1)
    assert intake.until(intake.job_id) is not None
    assert metrics.TENANT_QUARANTINES._value.get() == 1

    end(intake, quarantine_id)
    assert intake.until(intake.job_id) is None
    intake.lease_jobs()
    intake.resumes.run_once()
    intake.lease_jobs()
    intake.expand(COUNT)
    assert intake.valid_indexes() == list(range(COUNT))
    assert metrics.TENANT_QUARANTINES._value.get() == 0


@ENDS
def test_a_batch_of_a_quarantined_tenant_is_accepted_and_runs_afterwards(
    intake: QuarantinedIntake, end: Callable[[QuarantinedIntake, UUID], None]
) -> None:
    quarantine_id = intake.start()
    job_id = intake.add_batch()
    assert intake.until(job_id) is not None  # from its verdict on
    assert intake.loads() == []

    end(intake, quarantine_id)
    intake.lease_jobs()
    intake.expander.run_once({job_id: 7})
    (load,) = [load for load in intake.loads() if load.job_id == job_id]
    assert (load.emitted, load.remaining) == (7, 0)
    assert intake.until(intake.add_batch()) is None  # after the quarantine


def test_other_tenants_and_other_pools_do_not_wait(intake: QuarantinedIntake) -> None:
    with intake.engine.begin() as connection:
        other_tenant = add_running_job(connection, add_tenant(connection), COUNT)
        other_pool = add_running_job(connection, intake.tenant_id, COUNT, pool="pool-large")
    intake.start()
    assert {load.job_id for load in intake.loads()} == {other_tenant, other_pool}


def test_a_pause_of_the_owner_stands_beside_the_quarantine(intake: QuarantinedIntake) -> None:
    quarantine_id = intake.start()
    intake.control(pause_job)
    intake.end_by_operator(quarantine_id)
    assert intake.loads() == []
    assert intake.controls()[-1].paused

    intake.start()
    intake.control(resume_job)
    assert intake.loads() == []
    assert intake.controls()[-1].paused


def test_both_chains_say_who_ended_a_quarantine(intake: QuarantinedIntake) -> None:
    quarantine_id = intake.start()
    intake.end_by_operator(quarantine_id)
    with intake.engine.begin() as connection:
        assert not end_quarantine(connection, quarantine_id)
        assert not end_quarantine(connection, new_uuid())
        query = sa.select(audit_log).where(audit_log.c.action == "quarantine.ended")
        entries = connection.execute(query).all()
    assert {entry.tenant_id for entry in entries} == {intake.tenant_id, INSTALLATION}
    assert {entry.actor for entry in entries} == {"opkey_1"}
