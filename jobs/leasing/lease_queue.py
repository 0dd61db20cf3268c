"""A fair queue of jobs that wait for one kind of work: round-robin by tenant, oldest job first.

    plan (one query over all waiting jobs) ─► the next ids ─► leases on those still unclaimed

The query takes about 20 ms with 20,000 jobs, so one plan serves a few dozen claims, or one second.
Each process has its own rotation; every process serves each waiting tenant once per cycle.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.clock import Clock
from jobs.leasing.active_leases import ActiveLeases
from jobs.leasing.leases import Lease, is_unheld
from jobs.tables.jobs import job_leases, jobs
from storage.postgres.engines import autocommit

PLAN_JOBS_MAX: Final = 64
PLAN_AGE_S_MAX: Final = 1.0
"""Longest time that a tenant with new jobs may be missing from the plan, in seconds."""

_NO_TENANT: Final = UUID(int=0)


@dataclass(slots=True)
class LeaseQueue:
    """Claims jobs in fair order. Used by one thread at a time."""

    engine: sa.Engine
    leases: ActiveLeases
    where: sa.ColumnElement[bool]  # on columns of `jobs`: selects the waiting jobs
    clock: Clock
    served: UUID = _NO_TENANT  # the tenant that was served last
    has_skipped: bool = False  # whether the last claim skipped jobs of excluded tenants
    _plan: deque[tuple[UUID, UUID]] = field(default_factory=deque)  # job and tenant
    _plan_until_s: float = 0.0

    def claim(self, limit: int, *, excluding_tenants: Collection[UUID] = ()) -> list[Lease]:
        """Claim up to `limit` jobs without a holder, none of `excluding_tenants`.

        Costs at most one planning query.
        """
        self.has_skipped = False
        if limit <= 0:
            return []
        if len(self._plan) < limit or self.clock.monotonic_s() >= self._plan_until_s:
            self._load_plan()
        claimed: list[Lease] = []
        skipped: list[tuple[UUID, UUID]] = []
        try:
            while self._plan and len(claimed) < limit:
                if self._plan[0][1] in excluding_tenants:
                    skipped.append(self._plan.popleft())
                else:
                    claimed += self._claim_next(limit - len(claimed), excluding_tenants)
        except BaseException:  # whatever failed, no lease may outlive it
            for lease in claimed:  # heartbeats would keep a lease on jobs that nobody works on
                self.leases.let_expire(lease)
            raise
        self._plan.extendleft(reversed(skipped))
        self.has_skipped = bool(skipped)
        return claimed

    def _load_plan(self) -> None:
        query = fair_order_query(self.leases.role, self.where, after=self.served)
        with autocommit(self.engine) as connection:
            self._plan = deque((row.id, row.tenant_id) for row in connection.execute(query))
        self._plan_until_s = self.clock.monotonic_s() + PLAN_AGE_S_MAX

    def _claim_next(self, count: int, excluding_tenants: Collection[UUID]) -> list[Lease]:
        """Claim the next jobs of the plan; another process may have claimed some of them."""
        job_ids: list[UUID] = []
        while self._plan and len(job_ids) < count and self._plan[0][1] not in excluding_tenants:
            job_id, self.served = self._plan.popleft()
            job_ids.append(job_id)
        return self.leases.claim(sa.and_(self.where, jobs.c.id.in_(job_ids)), count)


def fair_order_query(
    role: str, where: sa.ColumnElement[bool], *, after: UUID
) -> sa.Select[tuple[UUID, UUID]]:
    """Return the query of the next jobs: the first job of every tenant, then the second, and so on.

    Tenants are ordered by id, starting behind `after`, so a plan continues where the last one
    ended.
    """
    number = sa.func.row_number().over(
        partition_by=jobs.c.tenant_id, order_by=(jobs.c.created_at, jobs.c.id)
    )
    held = sa.and_(job_leases.c.job_id == jobs.c.id, job_leases.c.role == role)
    waiting = (
        sa.select(jobs.c.id, jobs.c.tenant_id, number.label("number"))
        .select_from(jobs.outerjoin(job_leases, held))
        .where(where, is_unheld())
        .subquery("waiting")
    )
    return (
        sa.select(waiting.c.id, waiting.c.tenant_id)
        .order_by(waiting.c.number, waiting.c.tenant_id <= after, waiting.c.tenant_id)
        .limit(PLAN_JOBS_MAX)
    )
