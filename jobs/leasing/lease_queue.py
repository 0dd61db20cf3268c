"""A queue of jobs that wait for one kind of work: tenants take turns, each with its oldest job.

    plan (a look at all that wait) ─► the next few ids ─► leases on those that are still free

The look costs some 20 ms with 20,000 jobs, so its answer serves a few dozen claims, or a second.
Each process takes turns by itself; whoever waits is served by each within one cycle of it.
"""

from collections import deque
from collections.abc import Collection
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.clock import Clock
from jobs.leasing.active_leases import ActiveLeases
from jobs.leasing.leases import Lease, is_unheld
from jobs.tables.jobs import jobs
from jobs.tables.progress import job_leases

PLAN_JOBS_MAX: Final = 64
PLAN_AGE_S_MAX: Final = 1.0
"""How long a tenant that is new may go unseen while others wait."""

_NOBODY: Final = UUID(int=0)


class LeaseQueue:
    """Claims jobs in turn. Used by one thread at a time."""

    def __init__(
        self, engine: sa.Engine, leases: ActiveLeases, where: sa.ColumnElement[bool], clock: Clock
    ) -> None:
        """`where` speaks of columns of `jobs` and says which jobs wait."""
        self._engine = engine
        self._leases = leases
        self._where = where
        self._clock = clock
        self._plan: deque[tuple[UUID, UUID]] = deque()  # job and tenant
        self._plan_until_s = 0.0
        self.served = _NOBODY
        """The tenant whose turn was last."""
        self.passed_over = False
        """Whether the last claim left jobs of tenants that it was not to serve."""

    def claim(self, limit: int, *, but_of: Collection[UUID] = ()) -> list[Lease]:
        """Take up to `limit` jobs that nobody holds, none `but_of` these tenants.

        Costs at most one look.
        """
        self.passed_over = False
        if limit <= 0:
            return []
        if len(self._plan) < limit or self._clock.monotonic_s() >= self._plan_until_s:
            self._look()
        claimed: list[Lease] = []
        left: list[tuple[UUID, UUID]] = []
        try:
            while self._plan and len(claimed) < limit:
                if self._plan[0][1] in but_of:
                    left.append(self._plan.popleft())
                else:
                    claimed += self._claim_next(limit - len(claimed), but_of)
        except BaseException:
            for lease in claimed:  # or heartbeats would keep from everyone what nobody works on
                self._leases.let_expire(lease)
            raise
        self._plan.extendleft(reversed(left))
        self.passed_over = bool(left)
        return claimed

    def _look(self) -> None:
        query = fair_order_query(self._leases.role, self._where, after=self.served)
        with self._engine.begin() as connection:
            self._plan = deque((row.id, row.tenant_id) for row in connection.execute(query))
        self._plan_until_s = self._clock.monotonic_s() + PLAN_AGE_S_MAX

    def _claim_next(self, count: int, but_of: Collection[UUID]) -> list[Lease]:
        """Claim what comes next; a rival may have been faster."""
        job_ids: list[UUID] = []
        while self._plan and len(job_ids) < count and self._plan[0][1] not in but_of:
            job_id, self.served = self._plan.popleft()
            job_ids.append(job_id)
        return self._leases.claim(sa.and_(self._where, jobs.c.id.in_(job_ids)), count)


def fair_order_query(
    role: str, where: sa.ColumnElement[bool], *, after: UUID
) -> sa.Select[tuple[UUID, UUID]]:
    """Return the query of the next jobs: a round of all tenants, then their second jobs, ….

    Rounds go by tenant id and begin behind `after`, so a look goes on where the last one ended.
    """
    turn = sa.func.row_number().over(
        partition_by=jobs.c.tenant_id, order_by=(jobs.c.created_at, jobs.c.id)
    )
    held = sa.and_(job_leases.c.job_id == jobs.c.id, job_leases.c.role == role)
    waiting = (
        sa.select(jobs.c.id, jobs.c.tenant_id, turn.label("turn"))
        .select_from(jobs.outerjoin(job_leases, held))
        .where(where, is_unheld())
        .subquery("waiting")
    )
    return (
        sa.select(waiting.c.id, waiting.c.tenant_id)
        .order_by(waiting.c.turn, waiting.c.tenant_id <= after, waiting.c.tenant_id)
        .limit(PLAN_JOBS_MAX)
    )
