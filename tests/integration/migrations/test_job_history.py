"""Goal: plain SQL cannot rewrite the history of a job. Method: each forbidden update by itself."""

from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.states import TERMINAL_STATES, JobState
from jobs.tables.jobs import jobs
from tests.integration.jobs.rows import add_job, add_tenant, job_row

WAYS: Final = {
    JobState.IN_PROGRESS: ("in_progress",),
    JobState.FINALIZING: ("in_progress", "finalizing"),
    JobState.CANCELLING: ("in_progress", "cancelling"),
    JobState.COMPLETED: ("in_progress", "finalizing", "completed"),
    JobState.EXPIRED: ("in_progress", "finalizing", "expired"),
    JobState.FAILED: ("failed",),
    JobState.CANCELLED: ("in_progress", "cancelling", "cancelled"),
}
"""The updates that bring a job to each state."""

MOMENTS: Final = (
    "in_progress_at",
    "settled_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)

ENDED: Final[dict[str, Any]] = dict.fromkeys(MOMENTS, sa.text("now() - interval '1 year'")) | {
    "state": "in_progress",
    "close_reason": "failure_budget",
    "expires_at": sa.text("now() + interval '2 days'"),
    "completion_window": "48h",
    "model": "other",
    "model_version": "2",
    "pool": "other",
    "total_count": 8,
    "total_final": False,
    "sealed": False,
    "error_count": 3,
    "output_file_id": None,
    "error_file_id": None,
}
"""Updates that a terminal job must reject."""


def job_in(engine: sa.Engine, state: JobState) -> UUID:
    """A job that came to a state as jobs do, one transaction a move, with files if it has any."""
    with engine.begin() as connection:
        job_id = add_job(connection, add_tenant(connection), total_count=7)
    for name in WAYS[state]:
        with engine.begin() as connection:
            moved: dict[str, Any] = {"state": name, f"{name}_at": sa.func.now()}
            if name in {"completed", "expired", "cancelled"}:
                moved |= dict.fromkeys(("output_file_id", "error_file_id"), jobs.c.input_file_id)
            connection.execute(sa.update(jobs).values(moved).where(jobs.c.id == job_id))
    return job_id


def update(engine: sa.Engine, job_id: UUID, **columns: Any) -> None:
    with engine.begin() as connection:
        connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(**columns))


def row(engine: sa.Engine, job_id: UUID) -> sa.Row[Any]:
    with engine.connect() as connection:
        return job_row(connection, job_id)


def assert_refused(engine: sa.Engine, job_id: UUID, **columns: Any) -> None:
    before = row(engine, job_id)
    with pytest.raises(sa.exc.IntegrityError, match=r"cannot move|set once|has ended|moment of"):
        update(engine, job_id, **columns)
    assert row(engine, job_id) == before


@pytest.mark.parametrize("state", sorted(TERMINAL_STATES))
def test_a_terminal_job_cannot_be_changed(engine: sa.Engine, state: JobState) -> None:
    job_id = job_in(engine, state)
    has_files = state is not JobState.FAILED
    for name, value in ENDED.items():
        if has_files or not name.endswith("_file_id"):
            assert_refused(engine, job_id, **{name: value})
    assert_refused(engine, job_id, created_at=sa.func.now())


@pytest.mark.parametrize("state", sorted(TERMINAL_STATES))
def test_a_deletion_may_clear_user_fields(engine: sa.Engine, state: JobState) -> None:
    job_id = job_in(engine, state)
    gone = {"deleted_at": sa.func.now(), "removal_due_at": sa.func.now(), "traceparent": ""}
    update(engine, job_id, metadata=sa.null(), errors=sa.null(), **gone)
    update(engine, job_id, removal_due_at=None)
    assert_refused(engine, job_id, deleted_at=sa.text("now() - interval '1 year'"))
    assert_refused(engine, job_id, deleted_at=None)


@pytest.mark.parametrize("state", sorted(set(WAYS) - TERMINAL_STATES))
def test_fields_set_once_cannot_be_changed(engine: sa.Engine, state: JobState) -> None:
    job_id = job_in(engine, state)
    set_ = [name for name in ("created_at", *MOMENTS) if getattr(row(engine, job_id), name)]
    for name in set_:
        assert_refused(engine, job_id, **{name: sa.text("now() - interval '1 year'")})
        if name != "created_at":
            assert_refused(engine, job_id, **{name: None})
    assert len(set_) == len(WAYS[state]) + 1


@pytest.mark.parametrize("state", sorted(set(WAYS) - TERMINAL_STATES))
def test_a_timestamp_of_another_state_is_refused(engine: sa.Engine, state: JobState) -> None:
    job_id = job_in(engine, state)
    for name in ("completed_at", "failed_at", "expired_at", "cancelled_at"):
        assert_refused(engine, job_id, **{name: sa.func.now()})
    if state is not JobState.CANCELLING:
        assert_refused(engine, job_id, cancelling_at=sa.func.now())


@pytest.mark.parametrize(
    ("state", "target", "before"),
    [
        (JobState.IN_PROGRESS, "finalizing", "in_progress_at"),
        (JobState.FINALIZING, "completed", "finalizing_at"),
        (JobState.FINALIZING, "cancelling", "finalizing_at"),
        (JobState.CANCELLING, "cancelled", "cancelling_at"),
    ],
)
def test_timestamps_are_in_the_order_of_the_states(
    engine: sa.Engine, state: JobState, target: str, before: str
) -> None:
    """A transaction that waited for its row has an older now() than the one that it waited for."""
    job_id = job_in(engine, state)
    past = getattr(row(engine, job_id), before) - timedelta(seconds=5)
    update(engine, job_id, state=target, **{f"{target}_at": past})
    moved = row(engine, job_id)
    assert getattr(moved, f"{target}_at") == getattr(moved, before)
