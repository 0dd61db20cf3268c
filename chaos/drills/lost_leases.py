"""P9 in numbers: the intake that holds most leases is stopped for three of them, again and again.

The other host takes every lease meanwhile, so each stop is as many trials as leases were lost.
"""

import random
import time
from typing import Final

from chaos.checkers.end_states import CANCEL_ASKED
from chaos.clients.client import input_lines
from chaos.drills.context import MODEL, Setting
from chaos.faults.healing import struck
from chaos.faults.processes import pause
from chaos.installations.hosts import wait_until
from chaos.installations.settings import SESSION_S
from chaos.observations import database
from chaos.observations.role_counters import added, counted, refused
from chaos.reports.measures import Measure
from chaos.verification.lease_losses import Stop, judge_stops, lost_in, with_enough_losses
from chaos.verification.reconciliation import Ended, judge_books

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


def run(setting: Setting) -> list[Measure]:
    """Stop intakes until enough leases were lost; cancel the jobs and judge what they came to."""
    chance, engine = random.Random(setting.seed), setting.running.engine
    client, until_s = setting.client("leases"), time.monotonic() + CREATED_S_MAX
    wanted, lost = setting.size(*WANTED), 0
    name = f"leases-{setting.seed}"
    file_id = client.upload(f"file-{name}", input_lines(ITEMS, MODEL), until_s)
    job_ids = [
        client.create(f"{name}-{number}", file_id, until_s)["id"]
        for number in range(setting.size(*JOBS))
    ]
    stops: list[Stop] = []
    refused_before = counted(setting.running, refused(ROLE))
    while lost < wanted and len(stops) < STOPS_MAX:
        time.sleep(chance.uniform(0, 1))
        stops.append(_stop(setting, len(job_ids) // 2))
        lost += len(lost_in(database.lease_steps(engine), stops[-1]))
    until_s = time.monotonic() + ENDED_S_MAX
    for job_id in job_ids:
        client.cancel(job_id, until_s)
    ended = database.all_ended(engine, client, job_ids, until_s)
    books = judge_books(engine, client, [Ended(job, ITEMS, CANCEL_ASKED) for job in ended.values()])
    tried = added(refused_before, counted(setting.running, refused(ROLE)))
    found = [*judge_stops(setting, stops, {ROLE: tried}), *books]
    return with_enough_losses(found, {ROLE: wanted})


def _stop(setting: Setting, held_min: int) -> Stop:
    """Stop the intake that holds most leases, `held_min` at least. Raises DrillError."""
    engine, held = setting.running.engine, dict.fromkeys(setting.running.hosts, 0)

    def holds_enough() -> bool:
        for host in held:
            held[host] = database.leases_held(engine, ROLE, f"host_{host}")
        return max(held.values()) >= held_min

    wait_until(holds_enough, HELD_S_MAX, f"an intake with {held_min} leases")
    host = max(held, key=lambda name: held[name])
    began = database.last_lease_step(engine)
    cure = struck(pause(setting.running, f"{host}/{ROLE}"), f"{host}/{ROLE}")
    try:
        time.sleep(STOPPED_S)
        ended = database.last_lease_step(engine)
    finally:
        cure()
    return Stop(host, ROLE, began, ended)
