"""Follows which open jobs wait for their time or hours, by the database's clock."""

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from jobs.expansion.load_sums import JobLoad
from jobs.store.job_schedule import job_opening
from tenancy.tables import tenants

_REFRESH_S: Final = 2.0
_QUERY: Final = sa.select(tenants.c.id, tenants.c.bulk_hours).where(
    tenants.c.bulk_hours.is_not(None)
)


@dataclass(slots=True)
class JobOpenings:
    """Sets `opens_s` of loads, and knows which to set again as time passes.

    Without hours and start times, nothing is kept for a job.
    """

    now_s: float = 0.0  # the database's time, seconds since the epoch
    hours: dict[UUID, str] = field(default_factory=dict)
    """Bulk hours of tenants, as they were two seconds ago or later."""

    _due: list[tuple[float, UUID]] = field(default_factory=list)
    _due_by_job: dict[UUID, float] = field(default_factory=dict)
    _refresh_s: float = -math.inf

    def with_opening(self, load: JobLoad) -> JobLoad:
        """Return the load with `opens_s` as of now."""
        hours = self.hours.get(load.tenant_id)
        if not (load.not_before_s or load.bulk_hours or hours or load.opens_s):
            return load
        opening = job_opening(self.now_s, load.not_before_s, (load.bulk_hours, hours))
        known_s = self._due_by_job.get(load.job_id, math.inf)
        if opening.recheck_s < known_s:  # one entry for each job, or a few
            self._due_by_job[load.job_id] = opening.recheck_s
            heapq.heappush(self._due, (opening.recheck_s, load.job_id))
        return load._replace(opens_s=opening.opens_s)

    def pop_due(self) -> list[UUID]:
        """Return the jobs whose `opens_s` is to be set again now."""
        due = []
        while self._due and self._due[0][0] <= self.now_s:
            at_s, job_id = heapq.heappop(self._due)
            if self._due_by_job.get(job_id) == at_s:
                del self._due_by_job[job_id]
                due.append(job_id)
        return due

    def refresh(self, connection: sa.Connection, *, at_once: bool = False) -> set[UUID]:
        """Read the hours of tenants again if it is time; return the tenants whose hours changed."""
        if not at_once and self.now_s < self._refresh_s:
            return set()
        self._refresh_s = self.now_s + _REFRESH_S
        return self._replace_hours({row.id: row.bulk_hours for row in connection.execute(_QUERY)})

    def _replace_hours(self, hours: Mapping[UUID, str]) -> set[UUID]:
        changed = {tenant_id for tenant_id, _ in hours.items() ^ self.hours.items()}
        self.hours = dict(hours)
        return changed


def jobs_of(tenant_ids: set[UUID], loads: Iterable[JobLoad]) -> list[UUID]:
    """Return the jobs of some tenants."""
    return [load.job_id for load in loads if load.tenant_id in tenant_ids]
