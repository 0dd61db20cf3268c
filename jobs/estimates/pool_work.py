"""Reads the work of the open batches: by pool and tenant, of one tenant by job, and of one job."""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.estimates.new_jobs import NewJobs
from core.estimates.pool_shares import TenantWork
from core.estimates.tenant_queue import JobWork, WorkAhead, work_ahead
from core.states import JobKind
from core.tenant_claims import effective_weights
from jobs.expansion.job_loads import OPEN, loads_query
from jobs.expansion.known_claims import CLAIM_COLUMNS, claim_in
from jobs.expansion.load_sums import JobLoad, tail_items
from jobs.store.job_schedule import job_opening
from jobs.tables.jobs import job_cursors, jobs
from jobs.tables.retries import item_retries
from storage.postgres.database_times import seconds
from tenancy.tables import tenants

OBSERVED_S: Final = 3600.0
"""How far back jobs count as recent."""

RETRIES_MAX: Final = 100_000
"""Scheduled retries of one job that are counted."""

# Literals, so that Postgres recognises the partial indexes.
_OPEN_BATCH: Final = sa.and_(
    OPEN,
    jobs.c.kind == sa.literal_column("'batch'"),
    jobs.c.state == sa.literal_column("'in_progress'"),
    sa.or_(jobs.c.not_before.is_(None), jobs.c.not_before <= sa.func.now()),
)
_LOADS: Final = loads_query(JobKind.BATCH).where(_OPEN_BATCH).subquery("loads")
_OUTSTANDING: Final = sa.func.greatest(_LOADS.c.item_index - _LOADS.c.terminal, 0)
_NOT_EMITTED: Final = sa.func.greatest(_LOADS.c.total_count - _LOADS.c.item_index, 0)
_SUMS: Final = (
    sa.select(
        _LOADS.c.pool,
        _LOADS.c.tenant_id,
        *CLAIM_COLUMNS,
        sa.func.sum(_OUTSTANDING).label("outstanding"),
        sa.func.sum(_OUTSTANDING + _NOT_EMITTED).label("remaining"),
    )
    .join(tenants, tenants.c.id == _LOADS.c.tenant_id)
    .group_by(_LOADS.c.pool, _LOADS.c.tenant_id, *CLAIM_COLUMNS)
)
_LOG_SIZE: Final = sa.func.ln(sa.cast(jobs.c.total_count, sa.Double))
_NEW: Final = (
    sa.select(
        jobs.c.pool,
        jobs.c.tenant_id,
        sa.func.count().label("jobs"),
        sa.func.avg(_LOG_SIZE).label("log_mean"),
        sa.func.stddev_pop(_LOG_SIZE).label("log_deviation"),
    )
    .where(
        jobs.c.kind == sa.literal_column("'batch'"),
        jobs.c.deleted_at.is_(None),
        jobs.c.created_at > sa.func.now() - seconds(OBSERVED_S),
        jobs.c.pool.is_not(None),
        jobs.c.total_count > 0,
    )
    .group_by(jobs.c.pool, jobs.c.tenant_id)
)


@dataclass(frozen=True, slots=True)
class TenantSums:
    """The items of one tenant on one pool."""

    remaining: float = 0.0  # without a row
    outstanding: float = 0.0  # of those, emitted
    weight: float = 1.0  # effective, among the tenants of the pool


PoolSums = dict[str, dict[UUID, TenantSums]]
"""By pool and tenant."""

RecentJobs = dict[tuple[str, UUID], NewJobs]
"""By pool and tenant."""


def find_pool_sums(connection: sa.Connection) -> PoolSums:
    """Return the items of the open batches by pool and tenant, in one query for all pools."""
    rows: defaultdict[str, dict[UUID, Any]] = defaultdict(dict)
    for row in connection.execute(_SUMS):
        rows[row.pool][row.tenant_id] = row
    found = {}
    for pool, of_pool in rows.items():
        weights = effective_weights({key: claim_in(row, pool) for key, row in of_pool.items()})
        found[pool] = {
            key: TenantSums(float(row.remaining), float(row.outstanding), weights[key])
            for key, row in of_pool.items()
        }
    return found


def find_recent_jobs(connection: sa.Connection) -> RecentJobs:
    """Return the rate and the sizes of the batches that were created in the last hour."""
    return {
        (row.pool, row.tenant_id): NewJobs(
            row.jobs / OBSERVED_S, row.log_mean, row.log_deviation, OBSERVED_S
        )
        for row in connection.execute(_NEW)
    }


def tenant_works(pool: str, sums: PoolSums, recent: RecentJobs) -> dict[UUID, TenantWork]:
    """Return the tenants of a pool, with work or with recent jobs, as the estimate wants them."""
    works = {
        tenant_id: TenantWork(one.remaining, one.weight)
        for tenant_id, one in sums.get(pool, {}).items()
    }
    for (of_pool, tenant_id), new_jobs in recent.items():
        if of_pool == pool:
            work = works.get(tenant_id, TenantWork(0.0))
            works[tenant_id] = replace(work, new_jobs=new_jobs)
    return works


@dataclass(frozen=True, slots=True)
class TenantJobs:
    """The open batches of one tenant, on all pools."""

    works: dict[UUID, JobWork] = field(default_factory=dict)
    ahead: dict[UUID, WorkAhead] = field(default_factory=dict)


def find_tenant_jobs(connection: sa.Connection, tenant_id: UUID, now_s: float) -> TenantJobs:
    """Return the open batches of a tenant that have items left, with the work ahead of each.

    Outside of the bulk hours of a batch or of the tenant, only its emitted items count. `now_s` is
    in seconds since the epoch.
    """
    of_tenant = connection.scalar(sa.select(tenants.c.bulk_hours).where(tenants.c.id == tenant_id))
    opens_s = lru_cache(lambda hours: job_opening(now_s, 0.0, (hours, of_tenant)).opens_s)
    query = loads_query(JobKind.BATCH).where(_OPEN_BATCH, jobs.c.tenant_id == tenant_id)
    by_pool: defaultdict[str, list[JobWork]] = defaultdict(list)
    for row in connection.execute(query):
        load = JobLoad(*row)
        is_open = not opens_s(load.bulk_hours)
        left = load.outstanding + (max(0, load.total - load.emitted) if is_open else 0)
        if left:
            work = JobWork(
                load.job_id,
                load.rank,
                load.created_s,
                float(left),
                has_started=load.emitted > 0,
                tail=float(tail_items(load.total)),
            )
            by_pool[load.pool].append(work)
    found = TenantJobs()
    for works in by_pool.values():
        found.works.update((work.job_id, work) for work in works)
        found.ahead.update(work_ahead(works))
    return found


@dataclass(frozen=True, slots=True)
class JobPosition:
    """How far the emission of a job is."""

    emitted: int = 0
    copies: int = 0  # below the cursor
    retries: int = 0  # scheduled, counted up to `RETRIES_MAX`


def find_position(connection: sa.Connection, job_id: UUID) -> JobPosition:
    """Return how far the emission of a job is."""
    scheduled = (
        sa.select(sa.literal_column("1"))
        .where(item_retries.c.job_id == job_id)
        .limit(RETRIES_MAX)
        .subquery()
    )
    retries = sa.select(sa.func.count()).select_from(scheduled).scalar_subquery()
    query = sa.select(job_cursors.c.item_index, job_cursors.c.copy_count, retries.label("retries"))
    row: Any = connection.execute(query.where(job_cursors.c.job_id == job_id)).one_or_none()
    return JobPosition() if row is None else JobPosition(*row)
