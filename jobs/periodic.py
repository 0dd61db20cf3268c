"""Periodic tasks of intake: repairs, resume, retries, expiry, quarantines, backlog, appends."""

import random
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import sqlalchemy as sa

from core.clock import Clock
from jobs import metrics
from jobs.expansion.backlog_publisher import BacklogPublisher
from jobs.expansion.load_cache import RECONCILE_INTERVAL_S, LoadCache
from jobs.expansion.pool_capacity import PoolCapacities
from jobs.expansion.result_partitions import CHECK_INTERVAL_S
from jobs.leasing.active_leases import ActiveLeases
from jobs.leasing.lease_queue import LeaseQueue
from jobs.recovery.expiry import republish_copies, sweep_expired_jobs
from jobs.recovery.quarantine_sweep import QuarantineSweep
from jobs.recovery.re_emit import ReEmitter
from jobs.recovery.resume import ResumeSweep
from jobs.recovery.retry_emission import RetryEmitter
from jobs.recovery.retry_policy import RetryBudgetRules
from jobs.recovery.stall_recovery import StallRecovery, StallWatch
from jobs.settings import IntakeSettings
from jobs.supervised_threads import SupervisedThreads
from jobs.validation import validation_load
from jobs.validation.append_validator import ROLE, SMALL, AppendValidator
from jobs.validation.validation_load import ValidationLoadPublisher
from jobs.validation.validator import LeasedValidation
from jobs.validation.verdicts import APPEND_DUE
from storage.objects.object_store import ObjectStore
from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer

PRODUCERS: Final = 4
"""One producer for each sending thread: the backlog of one leaves the others their queues.

Backlog and load share one: their records are few, and newer ones follow.
"""

_STALL_CHECKS_PER_LIMIT: Final = 10
_RESUME_INTERVAL_S: Final = 0.5
_APPEND_INTERVAL_S: Final = 0.25
_QUARANTINE_INTERVAL_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicDeps:
    """Dependencies of the periodic tasks."""

    settings: IntakeSettings
    engine: sa.Engine
    objects: ObjectStore
    validation: LeasedValidation  # with leases of another role
    holder: str  # names this process in its leases
    leases: ActiveLeases  # of the expansion
    capacities: PoolCapacities
    loads: LoadCache
    admin: TopicAdmin
    clock: Clock


def start_periodic_tasks(
    threads: SupervisedThreads, deps: PeriodicDeps, producers: list[RecordProducer]
) -> ActiveLeases:
    """Start one thread for each task; return the leases on appends, to release at the end."""
    settings, engine, clock = deps.settings, deps.engine, deps.clock
    stall_producer, retry_producer, resume_producer, backlog_producer = producers
    expected_output = deps.capacities.expected_output
    emitter = ReEmitter(engine, deps.objects, stall_producer, deps.leases, expected_output)
    stalls = StallRecovery(engine, emitter, StallWatch(settings.stall_limit_s), deps.loads)

    def republish() -> None:
        with deps.loads.current() as loads:
            job_ids = list(loads.copies_left)
        republish_copies(engine, job_ids, stall_limit_s=settings.stall_limit_s)

    results = deps.loads.results
    threads.start_periodic(CHECK_INTERVAL_S, "results", partial(results.update, deps.admin))
    threads.start_periodic(RECONCILE_INTERVAL_S, "reconciliation", deps.loads.reconcile)
    stall_interval_s = settings.stall_limit_s / _STALL_CHECKS_PER_LIMIT
    recover_stalls = partial(stalls.run_once, deps.capacities, clock)
    threads.start_periodic(stall_interval_s, "repairs", recover_stalls)  # may wait for the store
    threads.start_periodic(stall_interval_s, "copies", republish)
    rules = RetryBudgetRules(
        share=settings.retry_share, items_per_s_min=settings.retry_items_per_s_min
    )
    retries = RetryEmitter(
        engine, deps.objects, retry_producer, rules, clock, expected_output=expected_output
    )
    emit_retries = partial(retries.run_once, deps.capacities)
    threads.start_periodic(settings.retry_interval_s, "retries", emit_retries)
    emitter = ReEmitter(engine, deps.objects, resume_producer, deps.leases, expected_output)
    resumes = ResumeSweep(
        engine, emitter, clock, deps.loads, window_items_max=settings.read_ahead_items
    )
    threads.start_periodic(_RESUME_INTERVAL_S, "resumes", resumes.run_once)
    sweep = partial(sweep_expired_jobs, engine, stall_limit_s=settings.stall_limit_s)
    threads.start_periodic(settings.expiry_interval_s, "expiry", sweep)
    quarantines = QuarantineSweep(engine)
    threads.start_periodic(_QUARANTINE_INTERVAL_S, "quarantines", quarantines.run_once)
    _start_backlog(threads, deps, backlog_producer)
    leases = create_leases(engine, ROLE, deps.holder, settings)
    threads.start_periodic(leases.heartbeat_s, "append-heartbeat", leases.extend_all)
    validation = replace(deps.validation, leases=leases)
    for name, size in (("appends", ~SMALL), ("small-appends", SMALL)):
        queue = LeaseQueue(engine, leases, sa.and_(APPEND_DUE, size), clock)
        appends = AppendValidator(engine, queue, validation)
        threads.start_periodic(_APPEND_INTERVAL_S, name, appends.run_once)
    return leases


def _start_backlog(
    threads: SupervisedThreads, deps: PeriodicDeps, producer: RecordProducer
) -> None:
    backlog = BacklogPublisher(
        deps.engine, deps.loads, producer, deps.clock, deps.holder, random.random
    )
    stop = deps.validation.stop
    threads.start("backlog", backlog.run_once, lambda: stop.wait(backlog.pause_s()))
    load = ValidationLoadPublisher(
        deps.engine, producer, deps.clock, deps.holder, deps.validation.bytes_read
    )
    threads.start_periodic(validation_load.INTERVAL_S, "load", load.run_once)


def create_leases(
    engine: sa.Engine, role: str, holder: str, settings: IntakeSettings
) -> ActiveLeases:
    """Return an empty set of leases of `role` for this process."""
    return ActiveLeases(
        engine,
        role=role,
        holder=holder,
        ttl_s=settings.lease_ttl_s,
        on_lost=metrics.LEASES_LOST.inc,
    )
