"""News of followed jobs: one statement for all of them, however many follow each.

Nothing is asked for while nobody follows, and the writer says nothing by itself: a notification in
each of its commits would cost more than a look twice a second.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID

import sqlalchemy as sa

from api import metrics
from api.runtime.background import OnFailure, end_process, supervise
from api.runtime.database import Database, DatabaseUnavailableError
from core.states import TERMINAL_STATES, JobState
from jobs.tables.jobs import jobs
from jobs.tables.progress import job_counters

_AWAY_FACTOR: Final = 4  # looks are so much rarer while Postgres is away
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


class UpDownCounter(Protocol):
    """A number that goes up and down."""

    def inc(self) -> None:
        """One more."""

    def dec(self) -> None:
        """One less."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job is, of one moment."""

    ended_count: int
    is_terminal: bool
    exists: bool = True


@dataclass(eq=False, slots=True)
class ProgressSubscription:
    """One who waits for news of one job."""

    news: JobProgress
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def changed(self, timeout_s: float) -> bool:
        """Whether there are news; False after `timeout_s` without any."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    def hear(self, news: JobProgress) -> None:
        """Take in what was looked up."""
        if news != self.news:
            self.news = news
            self._changed.set()


class ProgressPoller:
    """All who follow jobs in this process."""

    def __init__(
        self,
        database: Database,
        *,
        interval_s: float,
        on_failure: OnFailure = end_process,
        gauge: UpDownCounter = metrics.FOLLOWERS,
    ) -> None:
        """Look for news each `interval_s` while anybody follows; `gauge` shows how many do.

        Any error but an outage is told to `on_failure`: followers would hear nothing any more.
        """
        self._database, self._interval_s, self._gauge = database, interval_s, gauge
        self._on_failure = on_failure
        self._following: dict[UUID, set[ProgressSubscription]] = {}
        self._looking: asyncio.Task[None] | None = None
        self.count = 0

    @contextmanager
    def subscribe(self, job_id: UUID, news: JobProgress) -> Iterator[ProgressSubscription]:
        """Hear of a job of which `news` are known, until the block ends."""
        subscription = ProgressSubscription(news)
        self._following.setdefault(job_id, set()).add(subscription)
        self.count += 1
        self._gauge.inc()
        if self._looking is None or self._looking.done():
            self._looking = supervise(asyncio.create_task(self._look()), self._on_failure)
        try:
            yield subscription
        finally:
            self.count -= 1
            self._gauge.dec()
            others = self._following[job_id]
            others.discard(subscription)
            if not others:
                del self._following[job_id]

    def of(self, job_id: UUID) -> int:
        """Return how many follow a job."""
        return len(self._following.get(job_id, ()))

    async def _look(self) -> None:
        while self._following:
            await asyncio.sleep(self._interval_s)
            try:
                found = await self._database.run_across_tenants(
                    read_progress, list(self._following)
                )
            except DatabaseUnavailableError:
                await asyncio.sleep(_AWAY_FACTOR * self._interval_s)
                continue
            for job_id, news in found.items():
                for subscription in self._following.get(job_id, ()):
                    subscription.hear(news)


def read_progress(connection: sa.Connection, job_ids: list[UUID]) -> dict[UUID, JobProgress]:
    """Return the news of jobs."""
    rows = connection.execute(PROGRESS, {"job_ids": job_ids})
    found = {
        job_id: JobProgress(ended, JobState(state) in TERMINAL_STATES)
        for job_id, state, ended in rows
    }
    gone = JobProgress(0, is_terminal=True, exists=False)
    return {job_id: found.get(job_id, gone) for job_id in job_ids}
