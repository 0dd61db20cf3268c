"""The loop of the intake role: claim, look at every open job, emit what the windows allow."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from core.clock import Clock
from jobs import metrics
from jobs.expansion.expander import ROUND_ITEMS_MAX, Expander
from jobs.expansion.job_loads import job_loads
from jobs.expansion.job_selection import select_jobs
from jobs.expansion.leased_jobs import LeasedJobs
from jobs.expansion.pool_capacity import PoolCapacities
from jobs.expansion.windows import (
    JobLoad,
    TenantModel,
    WindowLimits,
    allowances,
    tenant_model_windows,
)
from jobs.settings import IntakeSettings
from jobs.validation.validator import Validator
from storage.postgres.notifications import Notifications

_CLAIM_INTERVAL_S: Final = 0.5  # new work notifies; this is for leases that ran out
_LOOK_SHARE_MAX: Final = 0.1  # of the time, while nothing can be emitted
_ROUND_PAUSE_S: Final = 0.01  # also when notifications never end
_REST_S_MAX: Final = 0.25  # how late a job may begin behind a look that was notified in vain


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeLoopDeps:
    """What the loop works with."""

    engine: sa.Engine
    held: LeasedJobs
    expander: Expander
    validator: Validator
    capacities: PoolCapacities
    notifications: Notifications
    clock: Clock
    stop: threading.Event


class IntakeLoop:
    """Rounds of intake. Everything it knows is in rows; a restart begins where they say."""

    def __init__(self, parts: IntakeLoopDeps, settings: IntakeSettings) -> None:
        """Work in one thread: `round`, then `pause`, again and again."""
        self._parts = parts
        self._settings = settings
        self._limits = WindowLimits(
            window_s=settings.window_s,
            window_items_max=settings.window_items_max,
            read_ahead_items=settings.read_ahead_items,
        )
        self._claim_at_s = 0.0
        self._look_s = 0.0
        self._rest_s = _ROUND_PAUSE_S
        self._was_woken = False
        self._has_more = False

    def round(self) -> None:
        """Do what can be done now. Raises DeliveryError and `DATABASE_AWAY`."""
        parts, clock = self._parts, self._parts.clock
        began_s = clock.monotonic_s()
        with parts.engine.begin() as connection:
            loads = job_loads(connection)
        windows = tenant_model_windows(loads, parts.capacities.pools(), self._limits)
        begun = 0
        if began_s >= self._claim_at_s:
            self._claim_at_s = began_s + _CLAIM_INTERVAL_S
            begun = parts.validator.claim()
            mine = parts.held.ids
            loads = self._hold(loads, windows)
            begun += len(parts.held.ids - mine)
        metrics.OUTSTANDING_ITEMS.set(sum(load.outstanding for load in loads))
        parts.held.refresh(loads)
        parts.held.tidy({load.job_id for load in loads})
        allowed = allowances(loads, windows)
        emitted = parts.expander.round(allowed)
        self._has_more = emitted >= ROUND_ITEMS_MAX
        # A round that found nothing to emit is only a look: its price sets how often to look.
        self._look_s = 0.0 if emitted else clock.monotonic_s() - began_s
        in_vain = self._was_woken and not begun
        self._rest_s = wakeup_delay_s(self._look_s) if in_vain else _ROUND_PAUSE_S

    def _hold(self, loads: list[JobLoad], windows: Mapping[TenantModel, int]) -> list[JobLoad]:
        """Choose what to expand; return `loads` with what was claimed."""
        held, count_max = self._parts.held, self._settings.jobs_held_max
        mine = held.ids
        held.hold(select_jobs(loads, windows, mine=mine, count_max=count_max), count_max)
        claimed = held.ids - mine
        if not claimed:
            return loads
        return [load._replace(is_held=load.is_held or load.job_id in claimed) for load in loads]

    def pause(self) -> None:
        """Wait until another round may find something to do."""
        parts = self._parts
        if self._has_more:
            return
        parts.stop.wait(self._rest_s)
        idle_s = self._settings.poll_idle_s
        if parts.held.ids:
            idle_s = max(self._settings.poll_busy_s, self._look_s / _LOOK_SHARE_MAX)
        self._was_woken = parts.notifications.wait(idle_s)
        if self._was_woken:
            self._claim_at_s = 0.0


def wakeup_delay_s(look_s: float) -> float:
    """Return how long to listen to nothing after a look of `look_s` that was notified in vain.

    Each notification is another look, and others may cause any number of them.
    """
    return max(_ROUND_PAUSE_S, min(look_s / _LOOK_SHARE_MAX, _REST_S_MAX))
