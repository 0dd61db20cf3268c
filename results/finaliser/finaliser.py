"""The loop of the finaliser: claim settled batches and finalise several at once."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.clock import Clock
from core.errors import Disposition, LeaseLostError, MillraceError
from jobs.leasing.active_leases import ActiveLeases
from jobs.leasing.job_backoff import JobBackoff
from jobs.leasing.lease_queue import LeaseQueue
from jobs.leasing.leases import Lease
from jobs.supervised_threads import SupervisedThreads
from results import metrics
from results.finaliser.finalisation import READY, finalise
from results.retention.object_removal import FileRemoval
from results.retention.orphan_sweep import OrphanSweep, orphan_lease
from results.settings import FinaliserSettings
from storage.objects.object_store import ObjectStore
from storage.postgres.engines import DATABASE_UNAVAILABLE
from storage.postgres.notifications import NotificationListener

LOG = logging.getLogger(__name__)

BACKOFF_S_MAX: Final = 900.0
_JOBS_MAX: Final = 10_000  # remembered; beyond it the oldest start again

ROLE: Final = "finaliser"
CHANNEL: Final = "millrace_jobs"
_JOIN_S: Final = 5.0


class RetryBackoff:
    """The last wait of each failed job, in this process. One thread at a time per job."""

    def __init__(self) -> None:
        self._last_s: OrderedDict[UUID, float] = OrderedDict()

    def next_s(self, job_id: UUID, first_s: float) -> float:
        """Return the wait after another failure of a job, in seconds, doubling from `first_s`."""
        last_s = self._last_s.pop(job_id, None)
        wait_s = first_s if last_s is None else max(first_s, min(2 * last_s, BACKOFF_S_MAX))
        self._last_s[job_id] = wait_s
        while len(self._last_s) > _JOBS_MAX:
            self._last_s.popitem(last=False)
        return wait_s


@dataclass(slots=True)
class Finaliser:
    """One process of the role; any number of processes may run."""

    engine: sa.Engine
    store: ObjectStore
    leases: ActiveLeases
    settings: FinaliserSettings
    clock: Clock
    _unavailable_since: float | None = None  # monotonic
    temporary: JobBackoff = field(default_factory=JobBackoff)
    """Of failures that may pass, as when the store throttles."""

    _backoff: RetryBackoff = field(default_factory=RetryBackoff)

    def run(self, notifications: NotificationListener, stop: threading.Event) -> None:
        """Finalise settled jobs until `stop`.

        1. Claim a job under a lease while a thread is free.
        2. Finalise each in a thread; heartbeats extend the leases meanwhile.
        3. Wait for a thread, a notification or `look_interval_s`.
        4. On `stop`, wait `stop_grace_s` for running jobs and release the leases of the others.

        A failed job keeps its lease until it expires, so that it cannot starve others: for
        `lease_s` after a permanent failure, which doubles each time, and after a failure of the
        store for a random time, see `JobBackoff`. Raises one of DATABASE_UNAVAILABLE when Postgres
        is unavailable for `database_wait_s`.
        """
        ended = threading.Event()  # the last job ended after `stop`, or a background task failed
        background = SupervisedThreads(
            ended, away_s_max=self.settings.database_wait_s, clock=self.clock
        )
        removal = FileRemoval(self.engine, self.store, ended.is_set)
        background.start_periodic(self.leases.heartbeat_s, "heartbeat", self.leases.extend_all)
        background.start_periodic(self.settings.removal_interval_s, "removal", removal.run_once)
        interval_s = self.settings.orphan_interval_s
        lease = orphan_lease(self.engine, self.leases.holder, interval_s=interval_s)
        age_s = self.settings.orphan_age_s
        orphans = OrphanSweep(self.engine, self.store, age_s, lease, ended.is_set)
        background.start_periodic(interval_s, "orphans", orphans.run_once)
        try:
            self._finalise_jobs(notifications, lambda: stop.is_set() or ended.is_set())
        finally:
            ended.set()
            background.join(_JOIN_S)

    def _finalise_jobs(
        self, notifications: NotificationListener, is_stopping: Callable[[], bool]
    ) -> None:
        queue = LeaseQueue(self.engine, self.leases, READY, self.clock)
        running: dict[Future[None], UUID] = {}  # to the tenants of their jobs
        jobs_max, wait_s = self.settings.jobs_max, self.settings.look_interval_s
        with ThreadPoolExecutor(jobs_max, ROLE) as threads:
            while not is_stopping():
                while lease := self._claim(queue, running.values()):
                    running[threads.submit(self._finalise, lease)] = queue.served
                if len(running) == jobs_max or queue.has_skipped:
                    wait(running, wait_s, FIRST_COMPLETED)
                else:
                    notifications.wait(wait_s)
                running = {job: tenant for job, tenant in running.items() if not job.done()}
            wait(running, self.settings.stop_grace_s)
            with suppress(*DATABASE_UNAVAILABLE):
                self.leases.release_all()  # jobs that still run stop at their next lease check

    def _claim(self, queue: LeaseQueue, running_of: Collection[UUID]) -> Lease | None:
        """Claim the next job if a thread is free; `running_of`: tenants of the running jobs.

        The last thread is reserved for a tenant without a running job: two long jobs of one tenant
        would otherwise block all others.
        """
        jobs_max = self.settings.jobs_max
        is_last = len(running_of) == jobs_max - 1
        limit = 1 if len(running_of) < jobs_max else 0
        try:
            leases = queue.claim(limit, excluding_tenants=running_of if is_last else ())
        except DATABASE_UNAVAILABLE as error:
            now = self.clock.monotonic_s()
            self._unavailable_since = self._unavailable_since or now
            if now - self._unavailable_since > self.settings.database_wait_s:
                raise
            LOG.warning("database away", extra={"error": type(error).__name__})
            return None
        self._unavailable_since = None
        return leases[0] if leases else None

    def _finalise(self, lease: Lease) -> None:
        """Finalise one job; a failure concerns only this job."""
        started = time.perf_counter()
        is_permanent = is_temporary = False
        facts = {"job": lease.job_id, "epoch": lease.epoch}
        try:
            state = finalise(
                self.engine, self.store, lease, check=lambda: self.leases.raise_if_lost(lease)
            )
        except LeaseLostError:
            metrics.FINALISE_FAILURES.labels(LeaseLostError.code).inc()
            LOG.warning("job lost to another finaliser", extra=facts)
        except DATABASE_UNAVAILABLE:
            metrics.FINALISE_FAILURES.labels("database_away").inc()
            LOG.warning("database away", extra=facts)
        except MillraceError as error:
            metrics.FINALISE_FAILURES.labels(error.code).inc()
            is_temporary = error.disposition is Disposition.RETRY
            is_permanent = not is_temporary
            LOG.log(logging.ERROR if is_permanent else logging.WARNING, error.code, extra=facts)
        except Exception:  # a defect on one job must not end the others
            is_permanent = True
            metrics.FINALISE_FAILURES.labels("internal").inc()
            LOG.exception("finalising failed", extra=facts)
        else:
            metrics.JOBS_TERMINAL.labels(state.value).inc()
            metrics.FINALISE_SECONDS.observe(time.perf_counter() - started)
            LOG.info("job ended", extra={**facts, "state": state.value})
        finally:
            first_s = self.settings.lease_s
            wait_s = self._backoff.next_s(lease.job_id, first_s) if is_permanent else 0
            if is_temporary:
                self.leases.back_off_lease(lease, self.temporary.next_s(lease.job_id))
            elif wait_s > first_s:
                self.leases.back_off_lease(lease, wait_s)
            else:
                self.leases.let_expire(lease)
