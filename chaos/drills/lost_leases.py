"""P9 in numbers: the intake with most leases is paused repeatedly for three lease durations.

The other host takes every lease meanwhile, so one pause is as many trials as leases are lost.
"""

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from chaos.checkers.end_states import MAY_BE_CANCELLED
from chaos.checkers.fencing import LeaseEvent, LostLease, lost_leases
from chaos.clients.client import input_lines
from chaos.drills.context import MODEL, DrillContext
from chaos.errors import DrillError
from chaos.faults.healing import require_target
from chaos.faults.processes import pause_role
from chaos.installations.hosts import wait_until
from chaos.installations.settings import SESSION_S
from chaos.measures import Measure, lease_loss_measure
from chaos.observations import database
from chaos.observations.role_counters import count_increase, refused_writes
from chaos.observations.triggers import last_lease_event, lease_events
from chaos.verification.reconciliation import EndedJob, reconcile_jobs

ROLE: Final = "intake"
PAUSED_S: Final = 3 * SESSION_S
PAUSES_MAX: Final = 20
JOBS: Final = (60, 20)  # of a long run and a quick one
LOSSES: Final = (500, 20)
ITEMS: Final = 5_000
"""Of each job; more in all than the log accepts at a time, so that most are never expanded."""

HELD_S_MAX: Final = 60.0
CREATED_S_MAX: Final = 120.0
ENDED_S_MAX: Final = 300.0


class PausedRole(NamedTuple):
    """A process that was paused between two lease events."""

    host: str
    role: str
    from_sequence: int
    to_sequence: int


def run(context: DrillContext) -> list[Measure]:
    """Pause intakes until enough leases are lost; then cancel and reconcile the jobs."""
    chance, engine = random.Random(context.seed), context.engine
    client, until_s = context.client("leases"), time.monotonic() + CREATED_S_MAX
    required, lost = context.size(*LOSSES), 0
    name = f"leases-{context.seed}"
    file_id = client.upload(f"file-{name}", input_lines(ITEMS, MODEL), until_s)
    job_ids = [
        client.create(f"{name}-{number}", file_id, until_s)["id"]
        for number in range(context.size(*JOBS))
    ]
    pauses: list[PausedRole] = []
    refused = count_increase(context.installation, refused_writes(ROLE))
    while lost < required and len(pauses) < PAUSES_MAX:
        time.sleep(chance.uniform(0, 1))
        pauses.append(_pause_holder(context, len(job_ids) // 2))
        lost += len(leases_lost_during(lease_events(engine), pauses[-1]))
    ended = database.cancel_jobs(engine, client, job_ids, time.monotonic() + ENDED_S_MAX)
    books = reconcile_jobs(
        engine, client, [EndedJob(job, ITEMS, MAY_BE_CANCELLED) for job in ended.values()]
    )
    found = [*check_paused_roles(context, pauses, {ROLE: refused()}), *books]
    return require_losses(found, {ROLE: required})


def _pause_holder(context: DrillContext, least: int) -> PausedRole:
    """Pause the intake with most leases, at least `least`. Raises DrillError."""
    engine, lease_counts = context.engine, dict.fromkeys(context.installation.hosts, 0)

    def holds_enough() -> bool:
        for host in lease_counts:
            lease_counts[host] = database.held_lease_count(engine, ROLE, f"host_{host}")
        return max(lease_counts.values()) >= least

    wait_until(holds_enough, HELD_S_MAX, f"an intake with {least} leases")
    host = max(lease_counts, key=lambda name: lease_counts[name])
    first = last_lease_event(engine)
    heal = require_target(pause_role(context.installation, f"{host}/{ROLE}"), f"{host}/{ROLE}")
    try:
        time.sleep(PAUSED_S)
        last = last_lease_event(engine)
    finally:
        heal()
    return PausedRole(host, ROLE, first, last)


def leases_lost_during(events: Iterable[LeaseEvent], pause: PausedRole) -> list[LostLease]:
    """Return the leases that other hosts took during a pause."""
    return [
        lost
        for lost in lost_leases(events, pause.role)
        if lost.user == f"host_{pause.host}"
        and pause.from_sequence < lost.sequence <= pause.to_sequence
    ]


def check_paused_roles(
    context: DrillContext, pauses: Sequence[PausedRole], refused: Mapping[str, int]
) -> list[Measure]:
    """Return a trial for each lease that a paused process lost, and counts of refused writes.

    `refused` is, by role, how many writes of the paused processes were refused.
    """
    events = lease_events(context.engine)
    found: list[Measure] = []
    for role, count in refused.items():
        lost = [
            (pause, leases_lost_during(events, pause)) for pause in pauses if pause.role == role
        ]
        for pause, leases in lost:
            context.note(f"{role} of {pause.host} lost {len(leases)} leases while it was paused")
        found += check_lost_leases(role, lost, count)
        context.note(f"{role}: {count} writes under a lost lease were tried, and refused")
    return found


def check_lost_leases(
    role: str, lost: Iterable[tuple[PausedRole, Iterable[LostLease]]], refused: int
) -> list[Measure]:
    """Return the measures of one role's lost leases.

    A resumed process may drop its leases before it writes, which leaves the fence untested. The
    number of refused writes is therefore reported and has no limit.
    """
    trials, used = [], 0
    for pause, leases in lost:
        for lease in leases:
            used += lease.was_used
            details = f"paused: {role} of {pause.host}; {lease.job}" if lease.late_writes else ""
            trials.append(
                Measure("P9", lease_loss_measure(role), lease.late_writes, evidence=details)
            )
    return [
        *trials,
        Measure(
            "P9",
            f"writes under a lost lease that were tried, and refused: {role}",
            refused,
            relation="report",
            size=len(trials),
            evidence="" if refused else "none was tried: the fence had nothing to refuse",
        ),
        Measure(
            "P9",
            f"of the lost leases those under which the stopped {role} had written",
            used,
            relation="report",
            size=len(trials),
        ),
    ]


def require_losses(measures: list[Measure], required: Mapping[str, int]) -> list[Measure]:
    """Return `measures`; `required` is the least number of lost leases by role.

    Raises DrillError when no measure is a violation and a role lost too few leases.
    """
    if any(measure.is_violation for measure in measures):
        return measures
    for role, count in required.items():
        lost = sum(measure.what == lease_loss_measure(role) for measure in measures)
        if lost < count:
            raise DrillError(f"paused processes lost {lost} leases of {role}, {count} are required")
    return measures
