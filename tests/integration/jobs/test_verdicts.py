"""Goal: a verdict is one transaction that respects a cancel, an expiry and another holder."""

import threading
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from core.errors import LeaseLostError
from core.states import JobState
from jobs.input.line_checks import ErrorCode, LineError
from jobs.input.token_sums import Tokens
from jobs.leasing import leases
from jobs.leasing.leases import Lease
from jobs.tables.jobs import job_leases, jobs
from jobs.validation.file_validation import ValidationResult
from jobs.validation.verdicts import VALIDATION_DUE, record_verdict
from registry.models import ModelVersion
from storage.postgres.outbox import outbox
from tests.integration.jobs.rows import add_job, add_tenant, claim_lease, execute, job_row
from tests.support.until import until

SMALL = ModelVersion(
    "small", "1", "pool-small", "simulated", ("/v1/embeddings",), datetime(2026, 1, 1, tzinfo=UTC)
)
VALID = ValidationResult(7, SMALL, tokens=Tokens(700, 70))
INVALID = ValidationResult(
    2, None, (LineError(ErrorCode.INVALID_JSON_LINE, "Not JSON.", None, 2),), 150
)


def leased_job(engine: sa.Engine, **columns: object) -> Lease:
    with engine.begin() as connection:
        add_job(connection, add_tenant(connection), **columns)
        return claim_lease(connection, "intake", VALIDATION_DUE)


def record(engine: sa.Engine, lease: Lease, result: ValidationResult) -> sa.Row[tuple[object, ...]]:
    with engine.begin() as connection:
        record_verdict(connection, lease, result)
    with engine.begin() as connection:
        return job_row(connection, lease.job_id)


def outbox_topics(engine: sa.Engine) -> list[str]:
    with engine.begin() as connection:
        return list(connection.scalars(sa.select(outbox.c.topic).order_by(outbox.c.id)))


CANCELLING = {"state": "cancelling", "close_reason": "cancelled", "cancelling_at": sa.func.now()}
EXPIRED = {"expires_at": sa.text("now() - interval '1 s'")}


@pytest.mark.parametrize(
    ("meanwhile", "result", "expected", "topics"),
    [
        ({}, VALID, ("in_progress", None, 7), ["events"]),
        ({}, INVALID, ("failed", None, None), ["events"]),
        (CANCELLING, VALID, ("cancelling", "cancelled", 7), ["results", "control"]),
        (CANCELLING, INVALID, ("cancelled", "cancelled", 0), ["events"]),
        (EXPIRED, VALID, ("in_progress", "expired", 7), ["results", "control", "events"]),
    ],
)
def test_a_verdict_respects_what_happened_during_validation(
    engine: sa.Engine,
    meanwhile: dict[str, Any],
    result: ValidationResult,
    expected: tuple[str, str | None, int | None],
    topics: list[str],
) -> None:
    lease = leased_job(engine)
    if meanwhile:
        execute(engine, sa.update(jobs).values(**meanwhile))
    job = record(engine, lease, result)
    assert (job.state, job.close_reason, job.total_count) == expected
    assert (job.in_progress_at is not None) == (job.state == "in_progress")
    assert (job.failed_at is not None) == (job.state == "failed")
    if result is VALID:
        assert (job.model, job.model_version, job.pool) == ("small", "1", "pool-small")
        assert (job.estimated_prompt_tokens, job.estimated_output_tokens) == (700, 70)
    else:
        assert job.errors == [error.as_json() for error in INVALID.errors]
    assert job.error_count == result.error_count
    assert outbox_topics(engine) == topics


def test_a_second_verdict_has_no_effect(engine: sa.Engine) -> None:
    lease = leased_job(engine)
    first = record(engine, lease, VALID)
    with engine.begin() as connection:
        assert record_verdict(connection, lease, INVALID) is None
    with engine.begin() as connection:
        assert job_row(connection, lease.job_id) == first


def test_a_lost_lease_cannot_record_a_verdict(engine: sa.Engine) -> None:
    lease = leased_job(engine)
    with engine.begin() as connection:
        leases.release(connection, lease)
        claim_lease(connection, "intake", VALIDATION_DUE, holder="b")
    with engine.begin() as connection, pytest.raises(LeaseLostError):
        record_verdict(connection, lease, VALID)
    with engine.begin() as connection:
        assert job_row(connection, lease.job_id).state == JobState.VALIDATING.value


def test_a_verdict_locks_its_job_before_its_lease(engine: sa.Engine) -> None:
    """A claim locks the job and then the lease: the other order would deadlock."""
    lease = leased_job(engine)
    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    with engine.begin() as other:
        other.execute(sa.select(jobs.c.id).with_for_update(key_share=True))
        thread = threading.Thread(target=record, args=(engine, lease, VALID))
        thread.start()
        until(lambda: other.scalar(waiting))
        other.execute(sa.select(job_leases.c.epoch).with_for_update(nowait=True))
    thread.join(20)
    with engine.begin() as connection:
        assert job_row(connection, lease.job_id).state == JobState.IN_PROGRESS.value
