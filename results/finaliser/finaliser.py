"""The loop of the finaliser: claim settled jobs, end several at once, each in a thread."""

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.clock import Clock
from core.errors import Disposition, LeaseLostError, MillraceError
from jobs.leasing.lease_heartbeat import HeldLeases
from jobs.leasing.lease_queue import LeaseQueue
from jobs.leasing.leases import Lease
from jobs.supervised_threads import Background
from results import metrics
from results.finaliser.finalisation import READY, finalise
from results.finaliser.retry_backoff import RetryBackoff
from results.retention.file_object_removal import FileRemoval
from results.retention.orphan_sweep import OrphanSweep
from results.settings import FinaliserSettings
from storage.objects.object_store import ObjectStore
from storage.postgres.engines import DATABASE_AWAY
from storage.postgres.notifications import Notifications

LOG = logging.getLogger(__name__)

ROLE: Final = "finaliser"
CHANNEL: Final = "millrace_jobs"
_JOIN_S: Final = 5.0


@dataclass(slots=True)
class Finaliser:
    """One process of the role; any number may run."""

    engine: sa.Engine
    store: ObjectStore
    leases: HeldLeases
    settings: FinaliserSettings
    clock: Clock
    _away_since: float | None = None  # monotonic
    _pauses: RetryBackoff = field(default_factory=RetryBackoff)

    def run(self, notifications: Notifications, stop: threading.Event) -> None:
        """End settled jobs until `stop`, and for `stop_grace_s` those that are begun.

        A job that fails keeps its lease until it runs out, so it waits `lease_s` for its next try
        and cannot starve others; longer each time unless the failure is one that passes. Raises one
        of DATABASE_AWAY after `database_wait_s` of it.
        """
        ended = threading.Event()  # by the last job, later than `stop`, or by a failure
        background = Background(ended, away_s_max=self.settings.database_wait_s, clock=self.clock)
        removal = FileRemoval(self.engine, self.store, ended.is_set)
        background.every(self.leases.heartbeat_s, "heartbeat", self.leases.extend_all)
        background.every(self.settings.removal_interval_s, "removal", removal.run_once)
        orphans = OrphanSweep(self.engine, self.store, self.settings.orphan_age_s, ended.is_set)
        background.every(self.settings.orphan_interval_s, "orphans", orphans.run_once)
        try:
            self._end_jobs(notifications, lambda: stop.is_set() or ended.is_set())
        finally:
            ended.set()
            background.join(_JOIN_S)

    def _end_jobs(self, notifications: Notifications, is_over: Callable[[], bool]) -> None:
        queue = LeaseQueue(self.engine, self.leases, READY, self.clock)
        running: dict[Future[None], UUID] = {}  # with the tenants of their jobs
        jobs_max, look_s = self.settings.jobs_max, self.settings.look_interval_s
        with ThreadPoolExecutor(jobs_max, ROLE) as threads:
            while not is_over():
                while lease := self._claim(queue, running.values()):
                    running[threads.submit(self._end, lease)] = queue.served
                if len(running) == jobs_max or queue.passed_over:
                    wait(running, look_s, FIRST_COMPLETED)
                else:
                    notifications.wait(look_s)
                running = {future: its for future, its in running.items() if not future.done()}
            wait(running, self.settings.stop_grace_s)
            with suppress(*DATABASE_AWAY):
                self.leases.release_all()  # what still runs stops at its next check

    def _claim(self, queue: LeaseQueue, holders: Collection[UUID]) -> Lease | None:
        """Take the next job when there is room for it, beside those of `holders`.

        The last place is for a tenant that has none, or two long jobs of one would stop all others.
        """
        jobs_max = self.settings.jobs_max
        is_last = len(holders) == jobs_max - 1
        limit = 1 if len(holders) < jobs_max else 0
        try:
            leases = queue.claim(limit, but_of=holders if is_last else ())
        except DATABASE_AWAY as error:
            now = self.clock.monotonic_s()
            self._away_since = self._away_since or now
            if now - self._away_since > self.settings.database_wait_s:
                raise
            LOG.warning("database away", extra={"error": type(error).__name__})
            return None
        self._away_since = None
        return leases[0] if leases else None

    def _end(self, lease: Lease) -> None:
        """End one job; whatever goes wrong is this job's alone."""
        started = time.perf_counter()
        is_to_blame = False
        facts = {"job": lease.job_id, "epoch": lease.epoch}
        try:
            state = finalise(self.engine, self.store, lease, check=lambda: self.leases.check(lease))
        except LeaseLostError:
            metrics.FINALISE_FAILURES.labels(LeaseLostError.code).inc()
            LOG.warning("job lost to another finaliser", extra=facts)
        except DATABASE_AWAY:
            metrics.FINALISE_FAILURES.labels("database_away").inc()
            LOG.warning("database away", extra=facts)
        except MillraceError as error:
            metrics.FINALISE_FAILURES.labels(error.code).inc()
            is_to_blame = error.disposition is not Disposition.RETRY
            LOG.log(logging.ERROR if is_to_blame else logging.WARNING, error.code, extra=facts)
        except Exception:  # the process loop of one job
            is_to_blame = True
            metrics.FINALISE_FAILURES.labels("internal").inc()
            LOG.exception("finalising failed", extra=facts)
        else:
            metrics.JOBS_TERMINAL.labels(state.value).inc()
            metrics.FINALISE_SECONDS.observe(time.perf_counter() - started)
            LOG.info("job ended", extra={**facts, "state": state.value})
        finally:
            pause_s = self._pauses.next_s(lease.job_id, self.settings.lease_s) if is_to_blame else 0
            if pause_s > self.settings.lease_s:
                self.leases.put_aside_for(lease, pause_s)
            else:
                self.leases.put_aside(lease)
