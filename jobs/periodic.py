"""What intake does beside its loop: repair, resume, retry, expire, and judge appended files."""

import threading
from dataclasses import dataclass
from functools import partial
from typing import Final

import sqlalchemy as sa

from core.clock import Clock
from jobs import metrics
from jobs.expansion.pool_capacity import PoolCapacities
from jobs.leasing.active_leases import ActiveLeases
from jobs.leasing.lease_queue import LeaseQueue
from jobs.recovery.copy_sweep import CopySweep
from jobs.recovery.expiry import ExpirySweep
from jobs.recovery.re_emit import ReEmitter
from jobs.recovery.resume import ResumeSweep
from jobs.recovery.retry_emission import RetryEmitter
from jobs.recovery.retry_policy import RetryBudgetRules
from jobs.recovery.stall_recovery import StallRecovery
from jobs.recovery.stall_watch import StallWatch
from jobs.settings import IntakeSettings
from jobs.supervised_threads import SupervisedThreads
from jobs.validation.append_validator import ROLE, SMALL, AppendValidator
from jobs.validation.append_verdicts import APPEND_DUE
from storage.objects.object_store import ObjectStore
from topics.clients.producer import LogProducer

PRODUCERS: Final = 3
"""A producer for each thread that sends: a flush waits for what others send, too."""

_REPAIR_LOOKS: Final = 10  # in one stall limit
_RESUME_LOOK_S: Final = 0.5
_APPEND_LOOK_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicDeps:
    """What the threads of intake share."""

    settings: IntakeSettings
    engine: sa.Engine
    objects: ObjectStore
    holder: str  # names this process in its leases
    leases: ActiveLeases  # under which jobs are expanded
    capacities: PoolCapacities
    clock: Clock
    stop: threading.Event


def start_periodic_tasks(
    threads: SupervisedThreads, means: PeriodicDeps, producers: list[LogProducer]
) -> ActiveLeases:
    """Start everything; return the leases that are to be given back at the end."""
    settings, engine, clock = means.settings, means.engine, means.clock
    for_repairs, for_retries, for_resumes = producers
    watch = StallWatch(settings.stall_limit_s)
    repairs = StallRecovery(engine, means.objects, for_repairs, means.leases, watch)
    copies = CopySweep(engine, stall_limit_s=settings.stall_limit_s)

    def repair() -> None:
        repairs.step(means.capacities, clock)
        copies.step()

    threads.start_periodic(settings.stall_limit_s / _REPAIR_LOOKS, "repairs", repair)
    rules = RetryBudgetRules(
        share=settings.retry_share, items_per_s_min=settings.retry_items_per_s_min
    )
    retrying = RetryEmitter(engine, means.objects, for_retries, rules, clock)
    threads.start_periodic(
        settings.retry_interval_s, "retries", partial(retrying.step, means.capacities)
    )
    again = ReEmitter(engine, means.objects, for_resumes, means.leases)
    resuming = ResumeSweep(engine, again, clock, window_items_max=settings.window_items_max)
    threads.start_periodic(_RESUME_LOOK_S, "resumes", resuming.step)
    expiry = ExpirySweep(engine, stall_limit_s=settings.stall_limit_s)
    threads.start_periodic(settings.expiry_interval_s, "expiry", expiry.step)
    leases = create_leases(engine, ROLE, means.holder, settings)
    threads.start_periodic(leases.heartbeat_s, "append-heartbeat", leases.extend_all)
    for name, size in (("appends", ~SMALL), ("small-appends", SMALL)):
        queue = LeaseQueue(engine, leases, sa.and_(APPEND_DUE, size), clock)
        appends = AppendValidator(engine, means.objects, leases, settings, queue, means.stop)
        threads.start_periodic(_APPEND_LOOK_S, name, appends.step)
    return leases


def create_leases(
    engine: sa.Engine, role: str, holder: str, settings: IntakeSettings
) -> ActiveLeases:
    """Return leases of a role for this process."""
    return ActiveLeases(
        engine,
        role=role,
        holder=holder,
        ttl_s=settings.lease_ttl_s,
        on_lost=metrics.LEASES_LOST.inc,
    )
