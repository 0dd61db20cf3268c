"""Goal: a valid job that cannot meet its deadline gets what its tenant's setting says."""

import json
import re
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from core.tenant_claims import PLAIN_CLAIM
from jobs.expansion.load_cache import LoadCache
from jobs.expansion.pool_capacity import PoolCapacities
from jobs.expansion.result_partitions import ResultPartitions
from jobs.input.line_checks import ErrorCode
from jobs.leasing.active_leases import ActiveLeases
from jobs.settings import IntakeSettings
from jobs.tables.jobs import job_cursors, jobs
from jobs.validation.feasibility import Feasibility
from jobs.validation.file_validation import ValidationResult
from jobs.validation.validation_process import ValidationProcesses
from jobs.validation.validator import LeasedValidation, Validator
from jobs.validation.verdicts import VALIDATION_DUE, record_verdict
from registry.models import add_model
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import write_object
from storage.postgres.outbox import outbox
from tenancy.tables import tenants, usage_ledger
from tests.integration.jobs.rows import (
    add_job,
    add_running_job,
    add_tenant,
    claim_lease,
    execute,
    input_line,
    job_row,
)
from tests.integration.jobs.test_verdicts import INVALID, SMALL
from tests.support.capacity_records import capacity_record
from tests.support.clock import ManualClock
from tests.support.until import until

HOUR_S = 3600


@dataclass
class Site:
    engine: sa.Engine
    tenant_id: UUID
    capacities: PoolCapacities
    feasibility: Feasibility

    def set(self, infeasible_jobs: str) -> None:
        execute(self.engine, sa.update(tenants).values(infeasible_jobs=infeasible_jobs))

    def add(self, **columns: object) -> UUID:
        expires_at = sa.text("now() + interval '1 hour'")
        with self.engine.begin() as connection:
            return add_job(connection, self.tenant_id, **({"expires_at": expires_at} | columns))

    def add_running(self, count: int, **columns: object) -> UUID:
        expires_at = sa.text("now() + interval '30 minutes'")
        given = {"expires_at": expires_at} | columns
        with self.engine.begin() as connection:
            return add_running_job(connection, self.tenant_id, count, **given)

    def assess(self, items: int, **columns: object) -> ValidationResult:
        return self.feasibility.assess(self.add(**columns), ValidationResult(items, SMALL))


@pytest.fixture
def site(engine: sa.Engine) -> Site:
    """A tenant whose infeasible jobs fail, and a pool that executes an item each second."""
    capacities = PoolCapacities(ManualClock())
    capacities.update([capacity_record("r", 1.0)])
    loads = LoadCache(engine, ResultPartitions())
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        add_running_job(connection, add_tenant(connection), 4, cursor={"item_index": 4})
    feasibility = Feasibility(engine, loads, capacities, lambda _tenant, _pool: PLAIN_CLAIM)
    site = Site(engine, tenant_id, capacities, feasibility)
    site.set("fail")
    return site


def test_a_job_fails_with_its_deadline_and_its_expected_end(site: Site) -> None:
    assert site.assess(HOUR_S - 60) == ValidationResult(HOUR_S - 60, SMALL)
    began_s = time.monotonic()
    result = site.assess(HOUR_S + 60)
    elapsed_s = time.monotonic() - began_s
    (error,) = result.errors
    assert (error.code, error.param) == (ErrorCode.DEADLINE_INFEASIBLE, "completion_window")
    assert result.error_count == 1
    found = re.fullmatch(
        r"The deadline (\S+) cannot be met: the batch would end at about (\S+)\.", error.message
    )
    assert found is not None
    deadline, end = (datetime.fromisoformat(text) for text in found.groups())
    # The end counts from now, the deadline from the job; both are cut to seconds.
    assert 55 <= (end - deadline).total_seconds() <= 66 + elapsed_s


def test_copies_need_no_time(site: Site) -> None:
    result = ValidationResult(10**6, SMALL)
    assert site.feasibility.assess(site.add(), result, 10**6 - 3500) == result
    assert site.feasibility.assess(site.add(), result, 10**6 - 3700).error_count


def test_the_validator_assesses_what_is_not_a_copy(
    site: Site, objects: LocalObjectStore, processes: ValidationProcesses
) -> None:
    with site.engine.begin() as connection:
        add_model(
            connection,
            SMALL.name,
            SMALL.version,
            pool=SMALL.pool,
            engine=SMALL.engine,
            endpoints=SMALL.endpoints,
        )
    lines = [json.loads(input_line(number)) for number in range(HOUR_S + 60)]
    lines = [line | {"body": {"model": "small", "input": "same"}} for line in lines]
    write_object(objects, "in", b"\n".join(json.dumps(line).encode() for line in lines))
    ids = [site.add(input_key="in", deduplicate=is_set) for is_set in (True, False)]
    leases = ActiveLeases(site.engine, role="intake", holder="a", ttl_s=60)
    validation = LeasedValidation(objects, leases, IntakeSettings(), threading.Event(), processes)
    validator = Validator(site.engine, validation, SystemClock(), site.feasibility)

    def states() -> list[str]:
        with site.engine.begin() as connection:
            return [job_row(connection, job_id).state for job_id in ids]

    validator.claim()
    until(lambda: "validating" not in states())
    validator.close()
    assert states() == ["in_progress", "failed"]


def test_a_job_is_marked_or_accepted(site: Site) -> None:
    site.set("mark")
    late = site.assess(HOUR_S + 60)
    deadline = late.assessed_deadline
    assert late == ValidationResult(
        HOUR_S + 60, SMALL, is_expected_late=True, assessed_deadline=deadline
    )
    assert deadline is not None
    assert site.assess(HOUR_S - 60) == ValidationResult(HOUR_S - 60, SMALL)
    site.set("accept")
    assert site.assess(HOUR_S + 60) == ValidationResult(HOUR_S + 60, SMALL)


def test_work_that_is_due_before_counts(site: Site) -> None:
    site.add_running(1200)
    site.add_running(1200, expires_at=sa.text("now() + interval '5 hours'"))
    assert not site.assess(2300).error_count
    assert site.assess(2500).error_count
    assert not site.assess(2500, priority=6).error_count
    execute(site.engine, sa.update(job_cursors).values(item_index=1200))  # they are outstanding
    assert site.assess(2500).error_count


def test_other_tenants_have_their_share(site: Site) -> None:
    assert not site.assess(2000).error_count
    with site.engine.begin() as connection:
        add_running_job(connection, add_tenant(connection), 10**6)
    assert site.assess(2000).error_count
    assert not site.assess(1700).error_count


def test_a_job_that_begins_later_has_less_time(site: Site) -> None:
    later = sa.text("now() + interval '30 minutes'")
    assert site.assess(2000, not_before=later).error_count
    assert not site.assess(1700, not_before=later).error_count


def test_an_unknown_rate_or_another_verdict_is_no_reason(site: Site) -> None:
    never = ValidationResult(10**6, SMALL)
    assert site.feasibility.assess(site.add(), INVALID) == INVALID
    past = site.add(expires_at=sa.text("now() - interval '1 second'"))
    cancelled = site.add(state="cancelling", close_reason="cancelled", cancelling_at=sa.func.now())
    for job_id in (past, cancelled):
        assert site.feasibility.assess(job_id, never) == never
    assert site.assess(10**6).error_count
    execute(site.engine, sa.update(job_cursors).values(item_index=3))
    assert (
        site.assess(10**6) == never
    )  # below its concurrency of four: its measured rate is too low
    execute(site.engine, sa.update(job_cursors).values(item_index=4))
    site.capacities.update([capacity_record("r", 0.0)])
    assert site.assess(10**6) == never
    site.capacities.update([capacity_record("r", 1.0, available=False)])
    assert site.assess(10**6) == never


@pytest.mark.parametrize("setting", ["fail", "mark"])
def test_the_verdict_is_recorded(site: Site, setting: str) -> None:
    site.set(setting)
    job_id = site.add()
    with site.engine.begin() as connection:
        lease = claim_lease(connection, "intake", VALIDATION_DUE)
    result = site.feasibility.assess(job_id, ValidationResult(10**6, SMALL))
    with site.engine.begin() as connection:
        record_verdict(connection, lease, result)
        row = job_row(connection, job_id)
        topics = list(connection.scalars(sa.select(outbox.c.topic)))
        assert connection.scalar(sa.select(sa.func.count()).select_from(usage_ledger)) == 0
    assert topics == ["events"]
    if setting == "mark":
        assert (row.state, row.expected_late, row.errors) == ("in_progress", True, None)
    else:
        assert (row.state, row.expected_late) == ("failed", False)
        assert [error["code"] for error in row.errors] == ["deadline_infeasible"]


@pytest.mark.parametrize("setting", ["fail", "mark"])
@pytest.mark.parametrize(
    ("meanwhile", "state"),
    [
        ({"expires_at": sa.text("now() + interval '30 days'")}, "in_progress"),
        (
            {"state": "cancelling", "close_reason": "cancelled", "cancelling_at": sa.func.now()},
            "cancelling",
        ),
    ],
)
def test_an_estimate_does_not_count_after_a_new_deadline_or_a_cancel(
    site: Site, setting: str, meanwhile: dict[str, object], state: str
) -> None:
    site.set(setting)
    job_id = site.add()
    with site.engine.begin() as connection:
        lease = claim_lease(connection, "intake", VALIDATION_DUE)
    result = site.feasibility.assess(job_id, ValidationResult(10**6, SMALL))
    execute(site.engine, sa.update(jobs).where(jobs.c.id == job_id).values(**meanwhile))
    with site.engine.begin() as connection:
        record_verdict(connection, lease, result)
        row = job_row(connection, job_id)
    assert (row.state, row.expected_late, row.errors) == (state, False, None)
    assert row.total_count == 10**6
