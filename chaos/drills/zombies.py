"""P9: roles of one host are stopped in the middle of their work for three leases, and let go on.

The other host takes over meanwhile. Several roles at once, so that many are tried in minutes. A
trial is a lease that a stopped process lost to the other host: of the roles that hold none, only
the files and bills of the jobs can tell (P2, P4).
"""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from chaos.clients.client import PAUSE_S, input_lines
from chaos.drills.context import MODEL, DrillContext
from chaos.faults.healing import Heal, require_target
from chaos.faults.processes import pause
from chaos.installations.hosts import wait_until
from chaos.installations.installation import Installation
from chaos.installations.settings import FINALISER_LEASE_S, SESSION_S
from chaos.observations import database
from chaos.observations.role_counters import read_counters, refused, total_increase
from chaos.reports.measures import Measure
from chaos.verification.lease_losses import PausedRole, check_paused_roles, require_losses
from chaos.verification.reconciliation import EndedJob, reconcile_jobs

LEASED: Final = ("intake", "finaliser")
"""Roles that hold leases, by the names that the leases have."""

OTHERS: Final = ("batcher", "gpu-consumer", "results-writer")
LOST_MIN: Final = dict.fromkeys(LEASED, 1)
HELD_S_MAX: Final = 15.0
"""The finaliser holds a lease for a tenth of a second only: it takes many looks to catch it so."""

_LOOK_S: Final = 0.04
ITEMS: Final = 20_000
"""More than ten seconds' work, which is a window, so that intake expands when it is stopped."""

PROGRESS_MAX: Final = 2000

SMALL_JOBS: Final = 20
SMALL_JOBS_MAX: Final = 80
SMALL_ITEMS: Final = 100
"""They end one after the other, so that finaliser and writer are always at work, and are created
until all roles are stopped."""

JOB_S_MAX: Final = 180.0
STOPPED_S: Final = 3 * max(SESSION_S, FINALISER_LEASE_S)


def run(context: DrillContext) -> list[Measure]:
    """Stop roles of one host in the middle of jobs, and judge what the jobs came to."""
    chance = random.Random(context.seed)
    installation = context.installation
    roles = [*LEASED, *(OTHERS if context.long else [chance.choice(OTHERS)])]
    client = context.client("zombies")
    until_s = time.monotonic() + JOB_S_MAX
    sizes = {}
    before = database.succeeded_count(installation.engine)
    large = client.upload(f"large-{context.seed}", input_lines(ITEMS, MODEL), until_s)
    small = client.upload(f"small-{context.seed}", input_lines(SMALL_ITEMS, MODEL), until_s)
    sizes[client.create(f"zombie-{context.seed}", large, until_s)["id"]] = ITEMS
    goal = before + chance.randrange(100, PROGRESS_MAX)
    wait_until(lambda: database.succeeded_count(installation.engine) >= goal, JOB_S_MAX, "progress")
    host = _busier(installation, chance)
    before_refused = {role: read_counters(installation, refused(role)) for role in LEASED}
    heals: list[Heal] = []
    are_stopped = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        creating = pool.submit(_create_small, context, small, until_s, are_stopped)
        try:
            time.sleep(SMALL_JOBS // 4 * PAUSE_S)
            began = database.last_lease_event(installation.engine)
            from_s = time.monotonic()
            for role in roles:
                heals.append(_stop(installation, host, role))
            stopped_s = time.monotonic()
            context.note(f"roles of {host} were stopped within {stopped_s - from_s:.1f} s")
            are_stopped.set()
            sizes |= dict.fromkeys(creating.result(), SMALL_ITEMS)
            time.sleep(max(0.0, stopped_s + STOPPED_S - time.monotonic()))
            over = database.last_lease_event(installation.engine)
        finally:  # or the drills that follow would meet them
            are_stopped.set()
            for heal in heals:
                heal()
                time.sleep(chance.uniform(0, PAUSE_S))
    ended = database.await_jobs(installation.engine, client, sizes, until_s)
    books = reconcile_jobs(
        installation.engine, client, [EndedJob(job, sizes[key]) for key, job in ended.items()]
    )
    stops = [PausedRole(host, role, began, over) for role in LEASED]
    tried = {
        role: total_increase(before, read_counters(installation, refused(role)))
        for role, before in before_refused.items()
    }
    found = [*check_paused_roles(context, stops, tried), *books]
    return require_losses(found, LOST_MIN)


def _create_small(
    context: DrillContext, file_id: str, until_s: float, are_stopped: threading.Event
) -> list[str]:
    """Create jobs at a steady pace until all roles are stopped; return them. Raises DrillError."""
    client, job_ids = context.client("zombies-small"), list[str]()
    while len(job_ids) < SMALL_JOBS or not (are_stopped.is_set() or len(job_ids) == SMALL_JOBS_MAX):
        key = f"zombie-{context.seed}-{len(job_ids)}"
        job_ids.append(client.create(key, file_id, until_s)["id"])
        time.sleep(PAUSE_S)
    return job_ids


def _busier(installation: Installation, chance: random.Random) -> str:
    """Return the host whose intake holds more leases; the seed chooses between equals."""
    hosts = chance.sample(sorted(installation.hosts), len(installation.hosts))
    return max(
        hosts, key=lambda h: database.held_lease_count(installation.engine, LEASED[0], f"host_{h}")
    )


def _stop(installation: Installation, host: str, role: str) -> Heal:
    """Stop a role, one that has leases while it has one to lose if that happens soon.

    It is looked at when it stands still and what it had asked of Postgres is done, since a lease
    may be gone in a tenth of a second. It is let go on when it has none.
    """
    target = f"{host}/{role}"
    until_s = time.monotonic() + HELD_S_MAX
    while True:
        heal = require_target(pause(installation, target), target)
        try:
            if role not in LEASED or time.monotonic() > until_s:
                return heal
            time.sleep(_LOOK_S)
            if database.losable_lease_count(installation.engine, role, f"host_{host}"):
                return heal
        except BaseException:
            heal()
            raise
        heal()
        time.sleep(_LOOK_S)
