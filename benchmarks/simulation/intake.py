"""Intake in virtual time: emits items within the windows of tenants, by the rules of the role."""

from collections.abc import Callable
from uuid import UUID

from benchmarks.simulation.events import Events
from benchmarks.simulation.jobs import POOL, SimulatedJob
from core.limits import CHUNK_ITEMS_MAX
from core.tenant_claims import TenantClaim
from jobs.expansion.allowances import allowances
from jobs.expansion.deadline_planner import DeadlinePlanner, supplies
from jobs.expansion.load_sums import LoadSums
from jobs.expansion.windows import (
    PoolCapacity,
    WindowLimits,
    pool_budgets,
    remaining_of,
    select_jobs,
    tenant_windows,
)
from jobs.settings import IntakeSettings

ROUND_S = 0.05
"""`poll_busy_s` of the role."""

LEASES_MAX = 64

Emit = Callable[[SimulatedJob, int, int], None]
"""Called with a job, its first item to emit, and their number; at most a chunk."""


class Intake:
    """The open jobs, and what of them is on the log."""

    def __init__(
        self,
        events: Events,
        emit: Emit,
        capacity: Callable[[], PoolCapacity],
        *,
        whole_jobs: bool,
        batcher_count: int,
    ) -> None:
        """With `whole_jobs`, a job is emitted at once, as without windows."""
        settings = IntakeSettings.model_fields
        self._events, self._emit, self._capacity = events, emit, capacity
        self._whole_jobs, self._batcher_count = whole_jobs, batcher_count
        self._limits = WindowLimits(
            window_s=settings["window_s"].default,
            window_items_max=settings["window_items_max"].default,
            read_ahead_items=settings["read_ahead_items"].default,
            read_ahead_bytes=settings["read_ahead_bytes"].default,
        )
        self._planner = DeadlinePlanner(events, turn_s=self._limits.window_s)
        self._leased: list[UUID] = []
        self.open_jobs: dict[UUID, SimulatedJob] = {}

    def add(self, job: SimulatedJob) -> None:
        """Add a job that was validated."""
        self.open_jobs[job.ref.job_id] = job
        if self._whole_jobs:
            self._emit_items(job, len(job.lengths))

    def close(self, job: SimulatedJob) -> None:
        """Remove a job that has ended or expired."""
        self.open_jobs.pop(job.ref.job_id, None)

    def run_round(self) -> None:
        """Emit what the windows allow."""
        if self._whole_jobs or not self.open_jobs:
            return
        now_s = self._events.monotonic_s()
        by_id = {job_id: job.load(now_s) for job_id, job in self.open_jobs.items()}
        sums = LoadSums.of(by_id.values())
        capacity = {POOL: self._capacity()}
        budgets = pool_budgets(sums.by_pool, capacity, self._limits, self._batcher_count)
        weights = {job.ref.tenant_id: job.weight for job in self.open_jobs.values()}

        def claim(tenant_id: UUID, _: str) -> TenantClaim:
            return TenantClaim(weights[tenant_id])

        remaining = {key: load.remaining for key, load in sums.by_tenant_pool.items()}
        limits = {"items_max": self._limits.window_items_max, "turn": int(now_s)}
        windows = tenant_windows(sums.by_tenant_pool, remaining, budgets, claim=claim, **limits)
        if self._planner.is_due:
            lag_s = 2 * self._limits.window_s
            rates = {POOL: capacity[POOL].items_per_s}
            supply = supplies(windows, rates, claim, now_s=now_s, lag_s=lag_s)
            self._planner.refresh(sums.by_tenant_pool, by_id.values(), supply)
        plans = self._planner.plans
        self._leased = select_jobs(
            sums.by_tenant_pool,
            windows,
            available=[POOL],
            unclaimable=(),
            count_max=LEASES_MAX,
            plans=plans,
            claim=claim,
        )
        # A plan is as of a second ago: it may name jobs that have ended.
        of_open = (by_id[one] for one in self._leased if one in by_id)
        leased = sorted(of_open, key=lambda load: load.age)
        windows = tenant_windows(
            sums.by_tenant_pool, remaining_of(leased), budgets, claim=claim, **limits
        )
        for job_id, count in allowances(leased, sums.by_tenant_pool, windows, plans).items():
            self._emit_items(self.open_jobs[job_id], count)

    def _emit_items(self, job: SimulatedJob, count: int) -> None:
        last = min(len(job.lengths), job.emitted + count)
        while job.emitted < last:
            number = min(CHUNK_ITEMS_MAX - job.emitted % CHUNK_ITEMS_MAX, last - job.emitted)
            self._emit(job, job.emitted, number)
            job.emitted += number
