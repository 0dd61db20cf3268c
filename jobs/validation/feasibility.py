"""Decides, once the items of a job are known, whether it can meet its deadline."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from core.states import JobState
from core.tenant_claims import whole_weights
from jobs.expansion.expected_end import NewWork, expected_end_s, tenant_rate
from jobs.expansion.known_claims import ClaimOf
from jobs.expansion.load_cache import LoadCache, OpenLoads
from jobs.expansion.pool_capacity import PoolCapacities
from jobs.input.line_checks import ErrorCode, LineError
from jobs.store.job_schedule import job_opening
from jobs.tables.jobs import jobs
from jobs.validation.file_validation import ValidationResult
from tenancy.tables import tenants
from tenancy.tenants import InfeasibleJobs


@dataclass(frozen=True, slots=True)
class Feasibility:
    """Assesses valid jobs of tenants that want it. Thread-safe."""

    engine: sa.Engine
    loads: LoadCache
    capacities: PoolCapacities
    claim: ClaimOf

    def assess(self, job_id: UUID, result: ValidationResult, copies: int = 0) -> ValidationResult:
        """Return the result with what the tenant wants for a job that cannot end in time.

        `copies` of its items are not executed: they get the results of others (`deduplicate`).
        A pool without replicas or without a known rate is no reason. Nor is one that has fewer
        items than it can execute at once: the rate that it measures then is below what it can do.
        Raises one of DATABASE_UNAVAILABLE.
        """
        if result.error_count or result.model is None:
            return result
        job = self._find(job_id)
        pool = self.capacities.pools().get(result.model.pool)
        if job is None or pool is None or pool.items_per_s <= 0:
            return result
        with self.loads.current() as loads:
            busy = loads.sums.by_pool.get(result.model.pool)
            if busy is None or busy.outstanding < pool.concurrency:
                return result
            rate = self._tenant_rate(job, result.model.pool, pool.items_per_s, loads)
            end_s = _end_s(job, result.item_count - copies, result.model.pool, rate, loads)
        if end_s <= job.expires_at.timestamp():
            return result
        result = replace(result, assessed_deadline=job.expires_at)
        if job.infeasible_jobs == InfeasibleJobs.MARK:
            return replace(result, is_expected_late=True)
        message = (
            f"The deadline {_text(job.expires_at)} cannot be met: the batch would end at about "
            f"{_text(datetime.fromtimestamp(end_s, UTC))}."
        )
        error = LineError(ErrorCode.DEADLINE_INFEASIBLE, message, "completion_window")
        return replace(result, errors=(error,), error_count=1)

    def _find(self, job_id: UUID) -> sa.Row[Any] | None:
        """Return the job if it is to be assessed."""
        query = (
            sa.select(jobs, tenants.c.infeasible_jobs, sa.func.now().label("now"))
            .add_columns(tenants.c.bulk_hours.label("tenant_bulk_hours"))
            .join(tenants, tenants.c.id == jobs.c.tenant_id)
            .where(
                jobs.c.id == job_id,
                jobs.c.state == JobState.VALIDATING.value,
                jobs.c.expires_at > sa.func.now(),
                tenants.c.infeasible_jobs != InfeasibleJobs.ACCEPT.value,
            )
        )
        with self.engine.begin() as connection:
            return connection.execute(query).one_or_none()

    def _tenant_rate(
        self, job: sa.Row[Any], pool: str, pool_rate: float, loads: OpenLoads
    ) -> float:
        others = {
            tenant_id: load.outstanding + load.remaining
            for (tenant_id, name), load in loads.sums.by_tenant_pool.items()
            if name == pool and tenant_id != job.tenant_id
        }
        claims = {tenant_id: self.claim(tenant_id, pool) for tenant_id in [*others, job.tenant_id]}
        time_s = (job.expires_at - job.now).total_seconds()
        return tenant_rate(job.tenant_id, others, whole_weights(claims), pool_rate, time_s)


def _end_s(job: sa.Row[Any], items: int, pool: str, rate: float, loads: OpenLoads) -> float:
    now_s = job.now.timestamp()
    not_before_s = job.not_before.timestamp() if job.not_before else 0.0
    hours = (job.bulk_hours, job.tenant_bulk_hours)
    work = NewWork(
        items=items,
        priority=job.priority,
        deadline_s=job.expires_at.timestamp(),
        starts_s=job_opening(now_s, not_before_s, hours).opens_s,
    )
    mine = loads.sums.by_tenant_pool.get((job.tenant_id, pool))
    return expected_end_s(work, mine.due if mine else {}, rate, now_s)


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")
