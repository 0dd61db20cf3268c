"""P9 in numbers: the intake with most leases is paused repeatedly for three lease durations.

The other host takes every lease meanwhile, so one pause is as many trials as leases are lost.
"""

import random
import time
from typing import Final

from chaos.checkers.end_states import MAY_BE_CANCELLED
from chaos.clients.client import input_lines
from chaos.drills.context import MODEL, DrillContext
from chaos.faults.healing import require_target
from chaos.faults.processes import pause_role
from chaos.installations.hosts import wait_until
from chaos.installations.settings import SESSION_S
from chaos.observations import database
from chaos.observations.role_counters import read_counters, refused_writes, total_increase
from chaos.observations.triggers import last_lease_event, lease_events
from chaos.reports.measures import Measure
from chaos.verification.lease_losses import (
    PausedRole,
    check_paused_roles,
    leases_lost_during,
    require_losses,
)
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
    refused_before = read_counters(context.installation, refused_writes(ROLE))
    while lost < required and len(pauses) < PAUSES_MAX:
        time.sleep(chance.uniform(0, 1))
        pauses.append(_pause_holder(context, len(job_ids) // 2))
        lost += len(leases_lost_during(lease_events(engine), pauses[-1]))
    ended = database.cancel_jobs(engine, client, job_ids, time.monotonic() + ENDED_S_MAX)
    books = reconcile_jobs(
        engine, client, [EndedJob(job, ITEMS, MAY_BE_CANCELLED) for job in ended.values()]
    )
    refused = total_increase(
        refused_before, read_counters(context.installation, refused_writes(ROLE))
    )
    found = [*check_paused_roles(context, pauses, {ROLE: refused}), *books]
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
