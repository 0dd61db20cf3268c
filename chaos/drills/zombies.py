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
from chaos.drills.context import MODEL, Setting
from chaos.faults.healing import Cure, struck
from chaos.faults.processes import pause
from chaos.installations.hosts import wait_until
from chaos.installations.installation import Installation
from chaos.installations.settings import FINALISER_LEASE_S, SESSION_S
from chaos.observations import database
from chaos.observations.role_counters import added, counted, refused
from chaos.reports.measures import Measure
from chaos.verification.lease_losses import Stop, judge_stops, with_enough_losses
from chaos.verification.reconciliation import Ended, judge_books

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


def run(setting: Setting) -> list[Measure]:
    """Stop roles of one host in the middle of jobs, and judge what the jobs came to."""
    chance = random.Random(setting.seed)
    running = setting.running
    roles = [*LEASED, *(OTHERS if setting.long else [chance.choice(OTHERS)])]
    client = setting.client("zombies")
    until_s = time.monotonic() + JOB_S_MAX
    sizes = {}
    before = database.settled(running.engine)
    large = client.upload(f"large-{setting.seed}", input_lines(ITEMS, MODEL), until_s)
    small = client.upload(f"small-{setting.seed}", input_lines(SMALL_ITEMS, MODEL), until_s)
    sizes[client.create(f"zombie-{setting.seed}", large, until_s)["id"]] = ITEMS
    goal = before + chance.randrange(100, PROGRESS_MAX)
    wait_until(lambda: database.settled(running.engine) >= goal, JOB_S_MAX, "progress")
    host = _busier(running, chance)
    before_refused = {role: counted(running, refused(role)) for role in LEASED}
    cures: list[Cure] = []
    are_stopped = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        creating = pool.submit(_create_small, setting, small, until_s, are_stopped)
        try:
            time.sleep(SMALL_JOBS // 4 * PAUSE_S)
            began = database.last_lease_step(running.engine)
            from_s = time.monotonic()
            for role in roles:
                cures.append(_stop(running, host, role))
            stopped_s = time.monotonic()
            setting.note(f"roles of {host} were stopped within {stopped_s - from_s:.1f} s")
            are_stopped.set()
            sizes |= dict.fromkeys(creating.result(), SMALL_ITEMS)
            time.sleep(max(0.0, stopped_s + STOPPED_S - time.monotonic()))
            over = database.last_lease_step(running.engine)
        finally:  # or the drills that follow would meet them
            are_stopped.set()
            for cure in cures:
                cure()
                time.sleep(chance.uniform(0, PAUSE_S))
    ended = database.all_ended(running.engine, client, sizes, until_s)
    books = judge_books(
        running.engine, client, [Ended(job, sizes[key]) for key, job in ended.items()]
    )
    stops = [Stop(host, role, began, over) for role in LEASED]
    tried = {
        role: added(before, counted(running, refused(role)))
        for role, before in before_refused.items()
    }
    found = [*judge_stops(setting, stops, tried), *books]
    return with_enough_losses(found, LOST_MIN)


def _create_small(
    setting: Setting, file_id: str, until_s: float, are_stopped: threading.Event
) -> list[str]:
    """Create jobs at a steady pace until all roles are stopped; return them. Raises DrillError."""
    client, job_ids = setting.client("zombies-small"), list[str]()
    while len(job_ids) < SMALL_JOBS or not (are_stopped.is_set() or len(job_ids) == SMALL_JOBS_MAX):
        key = f"zombie-{setting.seed}-{len(job_ids)}"
        job_ids.append(client.create(key, file_id, until_s)["id"])
        time.sleep(PAUSE_S)
    return job_ids


def _busier(running: Installation, chance: random.Random) -> str:
    """Return the host whose intake holds more leases; the seed chooses between equals."""
    hosts = chance.sample(sorted(running.hosts), len(running.hosts))
    return max(hosts, key=lambda h: database.leases_held(running.engine, LEASED[0], f"host_{h}"))


def _stop(running: Installation, host: str, role: str) -> Cure:
    """Stop a role, one that has leases while it has one to lose if that happens soon.

    It is looked at when it stands still and what it had asked of Postgres is done, since a lease
    may be gone in a tenth of a second. It is let go on when it has none.
    """
    target = f"{host}/{role}"
    until_s = time.monotonic() + HELD_S_MAX
    while True:
        cure = struck(pause(running, target), target)
        try:
            if role not in LEASED or time.monotonic() > until_s:
                return cure
            time.sleep(_LOOK_S)
            if database.leases_to_lose(running.engine, role, f"host_{host}"):
                return cure
        except BaseException:
            cure()
            raise
        cure()
        time.sleep(_LOOK_S)
