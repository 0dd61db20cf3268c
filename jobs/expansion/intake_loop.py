"""The loop of the intake role: claim jobs, read which loads changed, emit within windows."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from core.clock import Clock
from jobs import metrics
from jobs.expansion.allowances import allowances
from jobs.expansion.deadline_planner import DeadlinePlanner, supplies
from jobs.expansion.expander import ROUND_ITEMS_MAX, Expander
from jobs.expansion.known_claims import KnownClaims
from jobs.expansion.leased_jobs import LeasedJobs
from jobs.expansion.load_cache import LoadCache, OpenLoads
from jobs.expansion.load_sums import TenantPool
from jobs.expansion.pool_capacity import PoolCapacities
from jobs.expansion.windows import (
    PoolCapacity,
    WindowLimits,
    pool_budgets,
    remaining_of,
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
    """Rounds of intake. All state is in rows of Postgres, so a restart continues from them.

    Run `run_once` and `wait_for_work` alternately in one thread.
    """

    settings: IntakeSettings
    loads: LoadCache
    leased_jobs: LeasedJobs
    expander: Expander
    validator: Validator
    capacities: PoolCapacities
    claims: KnownClaims
    notifications: NotificationListener
    clock: Clock
    stop: threading.Event
    deadlines: DeadlinePlanner = field(init=False)
    _claim_at_s: float = 0.0
    _idle_round_s: float = 0.0
    _wakeup_delay_s: float = _ROUND_PAUSE_S
    _was_notified: bool = False
    _has_more: bool = False

    def __post_init__(self) -> None:
        self.deadlines = DeadlinePlanner(self.clock, turn_s=self.settings.window_s)

    def run_once(self) -> None:
        """Claim and emit what is possible now. Raises DeliveryError and `DATABASE_UNAVAILABLE`."""
        started_s = self.clock.monotonic_s()
        self.claims.refresh()
        self.loads.versions.update(self.capacities.versions())
        with self.loads.current() as loads:
            metrics.OUTSTANDING_ITEMS.set(loads.outstanding)
            allowed, started_count = self._plan(loads, started_s)
        planned_s = self.clock.monotonic_s()  # the expander may wait for the object store
        emitted = self.expander.run_once(allowed)
        self._has_more = emitted >= ROUND_ITEMS_MAX
        # A round without emission only reads loads: its duration sets how often to run it.
        self._idle_round_s = 0.0 if emitted else planned_s - started_s
        was_useless = self._was_notified and not started_count
        self._wakeup_delay_s = wakeup_delay_s(self._idle_round_s) if was_useless else _ROUND_PAUSE_S

    def _plan(self, loads: OpenLoads, now_s: float) -> tuple[dict[UUID, int], int]:
        """Claim jobs if it is time.

        Returns how many items each leased job may emit now, and how many jobs were claimed.
        """
        limits = WindowLimits(
            window_s=self.settings.window_s,
            window_items_max=self.settings.window_items_max,
            read_ahead_items=self.settings.read_ahead_items,
            read_ahead_bytes=self.settings.read_ahead_bytes,
        )
        pools, batcher_count = self.capacities.pools(), self.capacities.batcher_count()
        unserved = loads.unserved.by_pool.values()
        budgets = pool_budgets(loads.sums.by_pool, pools, limits, batcher_count, unserved)
        started_count = 0
        if now_s >= self._claim_at_s:
            self._claim_at_s = now_s + _CLAIM_INTERVAL_S
            started_count = self.validator.claim() + self._claim_jobs(loads, budgets, pools)
        held = {
            job_id: load
            for job_id in self.leased_jobs.ids
            if (load := loads.find(job_id)) and not load.opens_s  # else it needs no lease
        }
        changed_since = self.leased_jobs.reload_changed(held)
        self.leased_jobs.release_finished(held)
        leased = loads.leased(held)
        windows = self._windows(loads, remaining_of(leased), budgets)
        plans = self.deadlines.plans
        allowed = allowances(leased, loads.sums.by_tenant_pool, windows, plans)
        # They may have been resumed since `loads` was read: then their void items come first.
        for job_id in changed_since:
            allowed.pop(job_id, None)
        return allowed, started_count

    def _claim_jobs(
        self,
        loads: OpenLoads,
        budgets: Mapping[str, int],
        available: Mapping[str, PoolCapacity],
    ) -> int:
        """Select and lease jobs to expand; return how many were claimed."""
        before, count_max = self.leased_jobs.ids, self.settings.jobs_held_max
        by_tenant_pool = loads.sums.by_tenant_pool
        remaining = {key: load.remaining for key, load in by_tenant_pool.items()}
        windows = self._windows(loads, remaining, budgets)
        self._plan_deadlines(loads, windows, available)
        ranked = select_jobs(
            by_tenant_pool,
            windows,
            available=available,
            unclaimable=loads.leases.keys() - before,
            count_max=count_max,
            plans=self.deadlines.plans,
            claim=self.claims.claim,
        )
        self.leased_jobs.acquire(ranked, count_max)
        claimed = self.leased_jobs.ids - before
        for job_id in claimed:
            self.claims.learn(self.leased_jobs.by_id[job_id].job.ref)
        return len(claimed)

    def _plan_deadlines(
        self,
        loads: OpenLoads,
        windows: Mapping[TenantPool, int],
        pools: Mapping[str, PoolCapacity],
    ) -> None:
        """Plan the order of jobs by their deadlines, if it is time."""
        if not self.deadlines.is_due:
            return
        rates = {name: pool.items_per_s for name, pool in pools.items()}
        window_s = self.settings.window_s
        supply = supplies(
            windows, rates, self.claims.claim, now_s=loads.openings.now_s, lag_s=2 * window_s
        )
        self.deadlines.refresh(loads.sums.by_tenant_pool, loads.counted(), supply)

    def _windows(
        self, loads: OpenLoads, remaining: Mapping[TenantPool, int], budgets: Mapping[str, int]
    ) -> dict[TenantPool, int]:
        return tenant_windows(
            loads.sums.by_tenant_pool,
            remaining,
            budgets,
            items_max=self.settings.read_ahead_items,
            turn=int(self.clock.wall_s() / self.settings.window_s),
            claim=self.claims.claim,
        )

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
