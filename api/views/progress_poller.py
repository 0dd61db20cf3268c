"""Progress of jobs for their subscribers: one query for all jobs, however many subscribers.

Nothing is queried without subscribers. The results writer sends no notifications: one in each of
its commits would cost more than a query twice a second.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from api import metrics
from api.runtime.api_services import end_process
from api.runtime.database import Database, DatabaseUnavailableError
from core.runtime.supervised_tasks import OnFailure, supervise
from core.states import TERMINAL_STATES, JobState
from jobs.tables.jobs import job_counters, jobs

_OUTAGE_FACTOR: Final = 4  # the pause is longer by it while Postgres is unavailable
_COUNTED: Final = job_counters.c
PROGRESS: Final = (
    sa.select(
        jobs.c.id,
        jobs.c.state,
        _COUNTED.succeeded + _COUNTED.failed + _COUNTED.cancelled + _COUNTED.expired,
    )
    .join(job_counters, _COUNTED.job_id == jobs.c.id)
    .where(jobs.c.id == sa.any_(sa.bindparam("job_ids", type_=sa.ARRAY(sa.Uuid))))
)


@dataclass(frozen=True, slots=True)
class ProgressSnapshot:
    """The progress of a job at a time."""

    ended_count: int
    is_terminal: bool
    exists: bool = True


@dataclass(eq=False, slots=True)
class ProgressSubscription:
    """A subscriber's view of one job."""

    progress: ProgressSnapshot
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait_for_change(self, timeout_s: float) -> bool:
        """Wait until the progress changes; return False after `timeout_s` without a change."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    def update(self, progress: ProgressSnapshot) -> None:
        """Set the progress, and wake the subscriber if it changed."""
        if progress != self.progress:
            self.progress = progress
            self._changed.set()


class ProgressPoller:
    """Queries the progress of all jobs that have subscribers in this process."""

    def __init__(
        self,
        database: Database,
        *,
        interval_s: float,
        on_failure: OnFailure = end_process,
        report_count: Callable[[int], None] = metrics.RESULT_STREAMS.set,
    ) -> None:
        """Query every `interval_s` while there are subscribers, and report their number.

        Any error but an outage goes to `on_failure`: subscribers would get no updates any more.
        """
        self._database, self._interval_s = database, interval_s
        self._on_failure, self._report_count = on_failure, report_count
        self._subscriptions: dict[UUID, set[ProgressSubscription]] = {}
        self._polling: asyncio.Task[None] | None = None
        self.count = 0

    @contextmanager
    def subscribe(self, job_id: UUID, progress: ProgressSnapshot) -> Iterator[ProgressSubscription]:
        """Subscribe to a job, whose last known progress is `progress`, until the block ends."""
        subscription = ProgressSubscription(progress)
        self._subscriptions.setdefault(job_id, set()).add(subscription)
        self.count += 1
        self._report_count(self.count)
        if self._polling is None or self._polling.done():
            self._polling = supervise(asyncio.create_task(self._poll()), self._on_failure)
        try:
            yield subscription
        finally:
            self.count -= 1
            self._report_count(self.count)
            others = self._subscriptions[job_id]
            others.discard(subscription)
            if not others:
                del self._subscriptions[job_id]

    def subscriber_count(self, job_id: UUID) -> int:
        """Return the number of subscribers of a job."""
        return len(self._subscriptions.get(job_id, ()))

    async def _poll(self) -> None:
        while self._subscriptions:
            await asyncio.sleep(self._interval_s)
            try:
                found = await self._database.run_across_tenants(
                    read_progress, list(self._subscriptions)
                )
            except DatabaseUnavailableError:
                await asyncio.sleep(_OUTAGE_FACTOR * self._interval_s)
                continue
            for job_id, progress in found.items():
                for subscription in self._subscriptions.get(job_id, ()):
                    subscription.update(progress)


def read_progress(connection: sa.Connection, job_ids: list[UUID]) -> dict[UUID, ProgressSnapshot]:
    """Return the progress of jobs."""
    rows = connection.execute(PROGRESS, {"job_ids": job_ids})
    found = {
        job_id: ProgressSnapshot(ended, JobState(state) in TERMINAL_STATES)
        for job_id, state, ended in rows
    }
    deleted = ProgressSnapshot(0, is_terminal=True, exists=False)
    return {job_id: found.get(job_id, deleted) for job_id in job_ids}
