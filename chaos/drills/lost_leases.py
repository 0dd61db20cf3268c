"""P9 in numbers: the intake that holds most leases is stopped for three of them, again and again.

The other host takes every lease meanwhile, so each stop is as many trials as leases were lost.
"""

import random
import time
from typing import Final

from chaos.checkers.end_states import MAY_BE_CANCELLED
from chaos.clients.client import input_lines
from chaos.drills.context import MODEL, DrillContext
from chaos.faults.healing import require_target
from chaos.faults.processes import pause
from chaos.installations.hosts import wait_until
from chaos.installations.settings import SESSION_S
from chaos.observations import database
from chaos.observations.role_counters import read_counters, refused, total_increase
from chaos.reports.measures import Measure
from chaos.verification.lease_losses import (
    PausedRole,
    check_paused_roles,
    leases_lost_during,
    require_losses,
)
from chaos.verification.reconciliation import EndedJob, reconcile_jobs

ROLE: Final = "intake"
STOPPED_S: Final = 3 * SESSION_S
STOPS_MAX: Final = 20
JOBS: Final = (60, 20)  # of a long run and a quick one
WANTED: Final = (500, 20)
ITEMS: Final = 5_000
"""Of each job; far more in all than the log takes at a time, so that most are never expanded."""

HELD_S_MAX: Final = 60.0
CREATED_S_MAX: Final = 120.0
ENDED_S_MAX: Final = 300.0


def run(context: DrillContext) -> list[Measure]:
    """Stop intakes until enough leases were lost; cancel the jobs and judge what they came to."""
    chance, engine = random.Random(context.seed), context.installation.engine
    client, until_s = context.client("leases"), time.monotonic() + CREATED_S_MAX
    wanted, lost = context.size(*WANTED), 0
    name = f"leases-{context.seed}"
    file_id = client.upload(f"file-{name}", input_lines(ITEMS, MODEL), until_s)
    job_ids = [
        client.create(f"{name}-{number}", file_id, until_s)["id"]
        for number in range(context.size(*JOBS))
    ]
    stops: list[PausedRole] = []
    refused_before = read_counters(context.installation, refused(ROLE))
    while lost < wanted and len(stops) < STOPS_MAX:
        time.sleep(chance.uniform(0, 1))
        stops.append(_stop(context, len(job_ids) // 2))
        lost += len(leases_lost_during(database.lease_events(engine), stops[-1]))
    until_s = time.monotonic() + ENDED_S_MAX
    for job_id in job_ids:
        client.cancel(job_id, until_s)
    ended = database.await_jobs(engine, client, job_ids, until_s)
    books = reconcile_jobs(
        engine, client, [EndedJob(job, ITEMS, MAY_BE_CANCELLED) for job in ended.values()]
    )
    tried = total_increase(refused_before, read_counters(context.installation, refused(ROLE)))
    found = [*check_paused_roles(context, stops, {ROLE: tried}), *books]
    return require_losses(found, {ROLE: wanted})


def _stop(context: DrillContext, held_min: int) -> PausedRole:
    """Stop the intake that holds most leases, `held_min` at least. Raises DrillError."""
    engine, held = context.installation.engine, dict.fromkeys(context.installation.hosts, 0)

    def holds_enough() -> bool:
        for host in held:
            held[host] = database.held_lease_count(engine, ROLE, f"host_{host}")
        return max(held.values()) >= held_min

    wait_until(holds_enough, HELD_S_MAX, f"an intake with {held_min} leases")
    host = max(held, key=lambda name: held[name])
    began = database.last_lease_event(engine)
    heal = require_target(pause(context.installation, f"{host}/{ROLE}"), f"{host}/{ROLE}")
    try:
        time.sleep(STOPPED_S)
        ended = database.last_lease_event(engine)
    finally:
        heal()
    return PausedRole(host, ROLE, began, ended)
