"""The loop of the intake role: claim jobs, read the load of every open job, emit within windows."""

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from core.clock import Clock
from jobs import metrics
from jobs.expansion.expander import ROUND_ITEMS_MAX, Expander
from jobs.expansion.job_loads import job_loads
from jobs.expansion.leased_jobs import LeasedJobs
from jobs.expansion.pool_capacity import PoolCapacities
from jobs.expansion.result_partitions import ResultPartitions
from jobs.expansion.windows import (
    JobLoad,
    TenantPool,
    WindowLimits,
    allowances,
    pool_budgets,
    select_jobs,
    tenant_windows,
)
from jobs.settings import IntakeSettings
from jobs.validation.validator import Validator
from storage.postgres.notifications import NotificationListener

_CLAIM_INTERVAL_S: Final = 0.5  # new jobs send notifications; this finds expired leases
_IDLE_ROUND_SHARE_MAX: Final = 0.1  # of the time, while nothing can be emitted
_ROUND_PAUSE_S: Final = 0.01  # also while notifications never stop
_WAKEUP_DELAY_S_MAX: Final = 0.25  # added delay of a job's start after a useless notification


@dataclass(slots=True, kw_only=True)
class IntakeLoop:
    """Rounds of intake. All state is in database rows, so a restart continues from them.

    Run `run_once` and `wait_for_work` alternately in one thread.
    """

    settings: IntakeSettings
    engine: sa.Engine
    leased_jobs: LeasedJobs
    expander: Expander
    validator: Validator
    capacities: PoolCapacities
    notifications: NotificationListener
    clock: Clock
    stop: threading.Event
    results: ResultPartitions
    _claim_at_s: float = 0.0
    _idle_round_s: float = 0.0
    _wakeup_delay_s: float = _ROUND_PAUSE_S
    _was_notified: bool = False
    _has_more: bool = False

    def run_once(self) -> None:
        """Claim and emit what is possible now. Raises DeliveryError and `DATABASE_UNAVAILABLE`."""
        started_s = self.clock.monotonic_s()
        with self.engine.begin() as connection:
            loads = job_loads(connection)
        metrics.OUTSTANDING_ITEMS.set(sum(load.outstanding for load in loads))
        loads = self.results.available(loads)
        limits = WindowLimits(
            window_s=self.settings.window_s,
            window_items_max=self.settings.window_items_max,
            read_ahead_items=self.settings.read_ahead_items,
            read_ahead_bytes=self.settings.read_ahead_bytes,
        )
        pools = self.capacities.pools()
        budgets = pool_budgets(loads, pools, limits, self.capacities.batcher_count())
        started_count = 0
        if started_s >= self._claim_at_s:
            self._claim_at_s = started_s + _CLAIM_INTERVAL_S
            started_count = self.validator.claim()
            leased_ids = self.leased_jobs.ids
            loads = self._claim_jobs(loads, budgets, pools)
            started_count += len(self.leased_jobs.ids - leased_ids)
        changed_since = self.leased_jobs.reload_changed(loads)
        self.leased_jobs.release_finished({load.job_id for load in loads})
        allowed = allowances(loads, self._windows(loads, budgets))
        # They may have been resumed since `loads` was read: then their void items come first.
        for job_id in changed_since:
            allowed.pop(job_id, None)
        emitted = self.expander.run_once(allowed)
        self._has_more = emitted >= ROUND_ITEMS_MAX
        # A round without emission only reads loads: its duration sets how often to run it.
        self._idle_round_s = 0.0 if emitted else self.clock.monotonic_s() - started_s
        was_useless = self._was_notified and not started_count
        self._wakeup_delay_s = wakeup_delay_s(self._idle_round_s) if was_useless else _ROUND_PAUSE_S

    def _claim_jobs(
        self, loads: list[JobLoad], budgets: Mapping[str, int], available: Collection[str]
    ) -> list[JobLoad]:
        """Select and lease jobs to expand; return `loads` with the claimed ones marked as held."""
        leased_jobs, count_max = self.leased_jobs, self.settings.jobs_held_max
        before = leased_jobs.ids
        windows = self._windows([load._replace(is_leased=True) for load in loads], budgets)
        ranked = select_jobs(
            loads, windows, available=available, leased_ids=before, count_max=count_max
        )
        leased_jobs.acquire(ranked, count_max)
        claimed = leased_jobs.ids - before
        if not claimed:
            return loads
        return [load._replace(is_leased=load.is_leased or load.job_id in claimed) for load in loads]

    def _windows(self, loads: list[JobLoad], budgets: Mapping[str, int]) -> dict[TenantPool, int]:
        turn = int(self.clock.wall_s() / self.settings.window_s)
        return tenant_windows(loads, budgets, items_max=self.settings.read_ahead_items, turn=turn)

    def wait_for_work(self) -> None:
        """Wait until another round may have work."""
        if self._has_more:
            return
        self.stop.wait(self._wakeup_delay_s)
        idle_s = self.settings.poll_idle_s
        if self.leased_jobs.ids:
            idle_s = max(self.settings.poll_busy_s, self._idle_round_s / _IDLE_ROUND_SHARE_MAX)
        self._was_notified = self.notifications.wait(idle_s)
        if self._was_notified:
            self._claim_at_s = 0.0


def wakeup_delay_s(idle_round_s: float) -> float:
    """Return how long to ignore notifications after one that started nothing, in seconds.

    Each notification costs another round, and clients may cause any number of them.
    """
    return max(_ROUND_PAUSE_S, min(idle_round_s / _IDLE_ROUND_SHARE_MAX, _WAKEUP_DELAY_S_MAX))
