"""Keeps the deadline plans of all tenants and pools, as of a second ago."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from core.clock import Clock
from core.tenant_claims import TenantClaim, effective_weights
from core.urgency import priority_of
from jobs import metrics
from jobs.expansion.deadlines import DeadlinePlan, Supply, plan_deadlines, pressed_until
from jobs.expansion.known_claims import ClaimOf
from jobs.expansion.load_sums import DUE_SPAN_S, JobLoad, TenantPool, TenantPoolLoad

_INTERVAL_S: Final = 1.0
_TIME_SHARE_MAX: Final = 0.05  # of the loop's time, with any number of jobs under pressure


def supplies(
    windows: Mapping[TenantPool, int],
    rates: Mapping[str, float],
    claim: ClaimOf,
    *,
    now_s: float,
    lag_s: float,
) -> dict[TenantPool, Supply]:
    """Return what each tenant with a window can expect of each pool.

    Its part of the rate is its part of the windows, which leave out what other tenants do not need,
    or that of its effective weight, if this is more: windows of newcomers are small at first.
    """
    items: Counter[str] = Counter()
    claims: defaultdict[str, dict[UUID, TenantClaim]] = defaultdict(dict)
    for (tenant_id, pool), window in windows.items():
        items[pool] += window
        claims[pool][tenant_id] = claim(tenant_id, pool)
    weights = {pool: effective_weights(of_pool) for pool, of_pool in claims.items()}
    totals = {pool: sum(of_pool.values()) for pool, of_pool in weights.items()}
    found = {}
    for key, window in windows.items():
        tenant_id, pool = key
        part = max(window / max(1, items[pool]), weights[pool][tenant_id] / totals[pool])
        found[key] = Supply(rates.get(pool, 0.0) * part, now_s, lag_s)
    return found


@dataclass(slots=True)
class DeadlinePlanner:
    """Plans again each second, or less often while that takes long. Used by one thread.

    Processes plan by themselves, so for a second they may disagree about the order of jobs.
    """

    clock: Clock
    turn_s: float  # the time in which a window is executed
    plans: dict[TenantPool, DeadlinePlan] = field(default_factory=dict)
    _due_s: float = float("-inf")

    @property
    def is_due(self) -> bool:
        """Whether it is time to plan again."""
        return self.clock.monotonic_s() >= self._due_s

    def refresh(
        self,
        sums: Mapping[TenantPool, TenantPoolLoad],
        loads: Iterable[JobLoad],
        supply: Mapping[TenantPool, Supply],
    ) -> None:
        """Plan anew. `loads` are those of `sums`; they are read only under pressure."""
        started_s = self.clock.monotonic_s()
        pressure = find_pressure(sums, supply)
        self.plans = {}
        if pressure:
            turn = int(self.clock.wall_s() / self.turn_s)
            for key, group in _groups(loads, pressure).items():
                has_later = pressure[key].has_later
                plan = plan_deadlines(group, supply[key], turn, has_later=has_later)
                if plan.priority >= 0:
                    self.plans[key] = plan
        metrics.JOBS_URGENT.set(sum(len(plan.urgent) for plan in self.plans.values()))
        metrics.JOBS_RELEGATED.set(sum(len(plan.relegated) for plan in self.plans.values()))
        ended_s = self.clock.monotonic_s()
        self._due_s = ended_s + max(_INTERVAL_S, (ended_s - started_s) / _TIME_SHARE_MAX)


class Pressure(NamedTuple):
    """The jobs of a tenant and pool to plan: of one priority, and due until a time."""

    priority: int
    until_s: float
    has_later: bool  # jobs that are due after it


def find_pressure(
    sums: Mapping[TenantPool, TenantPoolLoad], supply: Mapping[TenantPool, Supply]
) -> dict[TenantPool, Pressure]:
    """Return the tenants and pools whose deadlines may not be comfortable.

    The priority is the highest with items to emit: lower ones emit what it leaves.
    """
    found = {}
    for key, load in sums.items():
        if load.expandable and key in supply:
            priority = priority_of(min(load.expandable))
            due = load.due[priority]
            until_s = pressed_until(due, supply[key])
            if until_s is not None:
                has_later = max(due) * DUE_SPAN_S >= until_s
                found[key] = Pressure(priority, until_s, has_later)
    return found


def _groups(
    loads: Iterable[JobLoad], pressure: Mapping[TenantPool, Pressure]
) -> dict[TenantPool, list[JobLoad]]:
    groups: defaultdict[TenantPool, list[JobLoad]] = defaultdict(list)
    for load in loads:
        key = (load.tenant_id, load.pool)
        found = pressure.get(key)
        if found is None or found.priority != load.priority or load.deadline_s >= found.until_s:
            continue
        if load.unfinished:
            groups[key].append(load)
    return groups
