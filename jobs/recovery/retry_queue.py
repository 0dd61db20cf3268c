"""Statements on waiting retries and their budgets: find due jobs, claim, delete, spend."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from jobs.expansion.job_loads import OPEN
from jobs.recovery.retry_policy import RetryBudgetRules, refill_budget
from jobs.store.job_schedule import job_opening
from jobs.tables.jobs import jobs
from jobs.tables.retries import item_attempts, item_retries, retry_budgets
from tenancy.tables import tenants

_SWEEP_MAX: Final = 1000
_THIS_JOBS: Final = item_retries.c.job_id == jobs.c.id

# Raw SQL, because `items` belongs to the results writer.
_CLAIM: Final = sa.text(
    """
    SELECT r.item_index, r.attempt, r.line_offset, EXISTS (
        SELECT FROM items i
        WHERE i.job_day = :day AND i.job_id = r.job_id AND i.item_index = r.item_index
    ) AS has_ended
    FROM item_retries r
    WHERE r.job_id = :job_id AND r.due_at <= now()
    ORDER BY r.due_at
    LIMIT :count
    FOR UPDATE OF r SKIP LOCKED
    """
).bindparams(sa.bindparam("job_id", type_=sa.Uuid))


@dataclass(frozen=True, slots=True)
class DueJob:
    """An open job with retries that are due."""

    job_id: UUID
    tenant_id: UUID
    pool: str
    due_count: int  # counted up to a limit


@dataclass(frozen=True, slots=True)
class Retry:
    """An item that waits for its next attempt."""

    item_index: int
    attempt: int
    line_offset: int | None
    has_ended: bool  # an earlier execution ended late: no attempt is needed


def find_due_jobs(connection: sa.Connection, count_max: int) -> list[DueJob]:
    """Return the open jobs with due retries, in no order; `count_max` limits each count.

    Jobs that wait for their `not_before` or their hours are left out until they open.
    """
    due = (
        sa.select(item_retries.c.job_id)
        .where(_THIS_JOBS, item_retries.c.due_at <= sa.func.now())
        .correlate(jobs)
    )
    counted = sa.select(sa.func.count()).select_from(due.limit(count_max).lateral())
    query = (
        sa.select(
            jobs.c.id, jobs.c.tenant_id, jobs.c.pool, counted.scalar_subquery().label("due_count")
        )
        .add_columns(jobs.c.not_before, jobs.c.bulk_hours, sa.func.now().label("now"))
        .add_columns(tenants.c.bulk_hours.label("tenant_bulk_hours"))
        .join(tenants, tenants.c.id == jobs.c.tenant_id)
        .where(OPEN, due.exists())
    )
    rows = connection.execute(query).all()
    return [DueJob(row.id, row.tenant_id, row.pool, row.due_count) for row in rows if _is_open(row)]


def _is_open(row: sa.Row[Any]) -> bool:
    not_before_s = row.not_before.timestamp() if row.not_before else 0.0
    hours = (row.bulk_hours, row.tenant_bulk_hours)
    return not job_opening(row.now.timestamp(), not_before_s, hours).opens_s


def has_waiting_retries(connection: sa.Connection) -> bool:
    """Whether any item of any job waits for a retry. Usually none does."""
    return bool(connection.scalar(sa.select(sa.exists(sa.select(item_retries.c.job_id)))))


def claim_retries(connection: sa.Connection, job_id: UUID, day: int, count: int) -> list[Retry]:
    """Lock the retries of a job that have been due longest; other processes skip them."""
    bound = {"job_id": job_id, "day": day, "count": count}
    return [Retry(*row) for row in connection.execute(_CLAIM, bound)]


def delete_retries(connection: sa.Connection, job_id: UUID, retries: Sequence[Retry]) -> None:
    """Delete claimed retries; a later attempt of the same item is another row."""
    if not retries:
        return
    keys = [(job_id, retry.item_index, retry.attempt) for retry in retries]
    row = sa.tuple_(item_retries.c.job_id, item_retries.c.item_index, item_retries.c.attempt)
    connection.execute(sa.delete(item_retries).where(row.in_(keys)))


def lock_void_versions(connection: sa.Connection, job_ids: Collection[UUID]) -> dict[UUID, int]:
    """Lock the jobs and return the control version below which their records are void."""
    query = sa.select(jobs.c.id, jobs.c.void_below).where(jobs.c.id.in_(job_ids))
    locked = query.order_by(jobs.c.id).with_for_update(read=True)
    return {row.id: row.void_below for row in connection.execute(locked)}


def delete_of_ended_jobs(connection: sa.Connection) -> int:
    """Delete a limited number of retries whose job accepts no more results; return how many."""
    is_accepting = sa.exists().where(
        _THIS_JOBS, jobs.c.settled_at.is_(None), jobs.c.close_reason.is_(None)
    )
    row = sa.tuple_(item_retries.c.job_id, item_retries.c.item_index, item_retries.c.attempt)
    ended = (
        sa.select(item_retries.c.job_id, item_retries.c.item_index, item_retries.c.attempt)
        .where(~is_accepting)
        .limit(_SWEEP_MAX)
        .with_for_update(skip_locked=True)
    )
    return connection.execute(sa.delete(item_retries).where(row.in_(ended))).rowcount


def create_missing_budgets(connection: sa.Connection, pools: Collection[str]) -> None:
    """Create a full budget for each pool without one."""
    full = {"tokens": 0.0, "filled_at": sa.func.to_timestamp(0)}
    for pool in sorted(pools):  # in order, so that two processes cannot deadlock
        statement = insert(retry_budgets).values(pool=pool, **full)
        connection.execute(statement.on_conflict_do_nothing())


def lock_budget(
    connection: sa.Connection, pool: str, pool_items_per_s: float, rules: RetryBudgetRules
) -> float | None:
    """Lock a budget and return its present tokens; None while another process has locked it."""
    row = connection.execute(
        sa.select(
            retry_budgets.c.tokens,
            sa.extract("epoch", sa.func.now() - retry_budgets.c.filled_at).label("elapsed_s"),
        )
        .where(retry_budgets.c.pool == pool)
        .with_for_update(skip_locked=True)
    ).one_or_none()
    if row is None:
        return None
    return refill_budget(row.tokens, float(row.elapsed_s), pool_items_per_s, rules)


def spend_budget(connection: sa.Connection, pool: str, tokens: float, count: int) -> None:
    """Withdraw `count` tokens from a locked budget that has `tokens`."""
    connection.execute(
        sa.update(retry_budgets)
        .where(retry_budgets.c.pool == pool)
        .values(tokens=tokens - count, filled_at=sa.func.now())
    )


def last_failed_attempts(
    connection: sa.Connection, job_id: UUID, indexes: Sequence[int]
) -> Mapping[int, int]:
    """Return the last failed attempt of each of these items (in order) that has one."""
    if not indexes:
        return {}
    columns = item_attempts.c
    query = (
        sa.select(columns.item_index, sa.func.max(columns.attempt).label("attempt"))
        .where(columns.job_id == job_id, columns.item_index.between(indexes[0], indexes[-1]))
        .group_by(columns.item_index)
    )
    return {row.item_index: row.attempt for row in connection.execute(query)}
