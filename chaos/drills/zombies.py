"""P9: roles of one host are paused in the middle of their work for three lease durations.

The other host takes over meanwhile. Several roles are paused at once, to test many in minutes. A
trial is a lease that a paused process lost to the other host. Roles without leases show a violation
only in files and bills of the jobs (P2, P4).
"""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from chaos.clients.client import PAUSE_S, input_lines
from chaos.drills.context import MODEL, DrillContext
from chaos.drills.lost_leases import PausedRole, check_paused_roles, require_losses
from chaos.faults.healing import Heal, require_target
from chaos.faults.processes import pause_role
from chaos.installations.installation import Installation
from chaos.installations.settings import FINALISER_LEASE_S, SESSION_S
from chaos.measures import Measure
from chaos.observations import database
from chaos.observations.role_counters import count_increase, refused_writes
from chaos.observations.triggers import last_lease_event
from chaos.verification.reconciliation import EndedJob, reconcile_jobs

LEASED: Final = ("intake", "finaliser")
"""Roles that hold leases, by the leases' names."""

UNLEASED: Final = ("batcher", "gpu-consumer", "results-writer")
LOST_MIN: Final = dict.fromkeys(LEASED, 1)
HELD_S_MAX: Final = 15.0
"""The finaliser holds a lease for a tenth of a second only, so it takes many attempts."""

_CHECK_S: Final = 0.04
ITEMS: Final = 20_000
"""More than ten seconds of work, which is one window, so that intake is expanding when paused."""

PROGRESS_MAX: Final = 2000

SMALL_JOBS: Final = 20
SMALL_JOBS_MAX: Final = 80
SMALL_ITEMS: Final = 100
"""Small jobs end one after another, which keeps finaliser and writer busy. They are created until
all roles are paused."""

JOB_S_MAX: Final = 180.0
PAUSED_S: Final = 3 * max(SESSION_S, FINALISER_LEASE_S)


def run(context: DrillContext) -> list[Measure]:
    """Pause roles of one host in the middle of jobs, and reconcile the jobs."""
    chance = random.Random(context.seed)
    installation = context.installation
    roles = [*LEASED, *(UNLEASED if context.long else [chance.choice(UNLEASED)])]
    client = context.client("zombies")
    until_s = time.monotonic() + JOB_S_MAX
    sizes = {}
    large = client.upload(f"large-{context.seed}", input_lines(ITEMS, MODEL), until_s)
    small = client.upload(f"small-{context.seed}", input_lines(SMALL_ITEMS, MODEL), until_s)
    sizes[client.create(f"zombie-{context.seed}", large, until_s)["id"]] = ITEMS
    database.await_progress(installation.engine, chance.randrange(100, PROGRESS_MAX))
    host = _busier_host(installation, chance)
    refused = {role: count_increase(installation, refused_writes(role)) for role in LEASED}
    heals: list[Heal] = []
    are_paused = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        creating = pool.submit(_create_small, context, small, until_s, are_paused)
        try:
            time.sleep(SMALL_JOBS // 4 * PAUSE_S)
            first = last_lease_event(installation.engine)
            from_s = time.monotonic()
            for role in roles:
                heals.append(_pause(installation, host, role))
            paused_s = time.monotonic()
            context.note(f"roles of {host} were paused within {paused_s - from_s:.1f} s")
            are_paused.set()
            sizes |= dict.fromkeys(creating.result(), SMALL_ITEMS)
            time.sleep(max(0.0, paused_s + PAUSED_S - time.monotonic()))
            last = last_lease_event(installation.engine)
        finally:  # later drills must not meet paused roles
            are_paused.set()
            for heal in heals:
                heal()
                time.sleep(chance.uniform(0, PAUSE_S))
    ended = database.await_jobs(installation.engine, client, sizes, until_s)
    reconciled = reconcile_jobs(
        installation.engine, client, [EndedJob(job, sizes[key]) for key, job in ended.items()]
    )
    pauses = [PausedRole(host, role, first, last) for role in LEASED]
    found = [
        *check_paused_roles(context, pauses, {role: count() for role, count in refused.items()}),
        *reconciled,
    ]
    return require_losses(found, LOST_MIN)


def _create_small(
    context: DrillContext, file_id: str, until_s: float, are_paused: threading.Event
) -> list[str]:
    """Create jobs at a steady pace until all roles are paused; return them. Raises DrillError."""
    client, job_ids = context.client("zombies-small"), list[str]()
    while len(job_ids) < SMALL_JOBS or not (are_paused.is_set() or len(job_ids) == SMALL_JOBS_MAX):
        key = f"zombie-{context.seed}-{len(job_ids)}"
        job_ids.append(client.create(key, file_id, until_s)["id"])
        time.sleep(PAUSE_S)
    return job_ids


def _busier_host(installation: Installation, chance: random.Random) -> str:
    """Return the host whose intake holds more leases; the seed decides a tie."""
    hosts = chance.sample(sorted(installation.hosts), len(installation.hosts))
    return max(
        hosts, key=lambda h: database.held_lease_count(installation.engine, LEASED[0], f"host_{h}")
    )


def _pause(installation: Installation, host: str, role: str) -> Heal:
    """Pause a role; a leased role stays paused only while it holds a lease that it can lose.

    The lease is checked once the role is paused and its statements are done, since a lease may last
    a tenth of a second only. Without a lease to lose, the role is resumed and the attempt repeated.
    """
    target = f"{host}/{role}"
    until_s = time.monotonic() + HELD_S_MAX
    while True:
        heal = require_target(pause_role(installation, target), target)
        try:
            if role not in LEASED or time.monotonic() > until_s:
                return heal
            time.sleep(_CHECK_S)
            if database.losable_lease_count(installation.engine, role, f"host_{host}"):
                return heal
        except BaseException:
            heal()
            raise
        heal()
        time.sleep(_CHECK_S)
