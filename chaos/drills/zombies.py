"""P9: roles of one host are stopped in the middle of their work for three leases, and let go on.

The other host takes over meanwhile. Several roles at once, so that many are tried in minutes. A
trial is a lease that a stopped process lost to the other host: of the roles that hold none, only
the files and bills of the jobs can tell (P2, P4).
"""

import contextlib
import random
import time
from typing import Final

from chaos import evidence
from chaos.clients import PAUSE_S, input_lines
from chaos.drills.books import Ended, judge_books
from chaos.drills.setting import MODEL, Setting
from chaos.drills.stops import Stop, judge_stops, with_enough_losses
from chaos.failures import DrillError
from chaos.hosts import wait_until
from chaos.installation import Installation
from chaos.measures import Measure
from chaos.nemeses.cure import Cure
from chaos.nemeses.processes import pause
from chaos.settings_of_drills import FINALISER_LEASE_S, SESSION_S

LEASED: Final = ("intake", "finaliser")
"""Roles that hold leases, by the names that the leases have."""

OTHERS: Final = ("batcher", "gpu-consumer", "results-writer")
HELD_S_MAX: Final = 3.0
ITEMS: Final = 20_000
"""More than ten seconds' work, which is a window, so that intake expands when it is stopped."""

PROGRESS_MAX: Final = 2000

SMALL_JOBS: Final = 20
SMALL_ITEMS: Final = 100
"""They end one after the other, so that finaliser and writer are always at work."""

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
    before = evidence.settled(running.engine)
    large = client.upload(f"large-{setting.seed}", input_lines(ITEMS, MODEL), until_s)
    small = client.upload(f"small-{setting.seed}", input_lines(SMALL_ITEMS, MODEL), until_s)
    sizes[client.create(f"zombie-{setting.seed}", large, until_s)["id"]] = ITEMS
    goal = before + chance.randrange(100, PROGRESS_MAX)
    wait_until(lambda: evidence.settled(running.engine) >= goal, JOB_S_MAX, "progress")
    host = _busier(running, chance)
    cures: list[Cure] = []
    stopped_s, began = 0.0, 0
    try:
        for number in range(SMALL_JOBS):
            job = client.create(f"zombie-{setting.seed}-{number}", small, until_s)
            sizes[job["id"]] = SMALL_ITEMS
            if number == SMALL_JOBS // 4:
                began = evidence.last_lease_step(running.engine)
                for role in roles:
                    cures.append(_stop(running, host, role))
                stopped_s = time.monotonic()
            time.sleep(PAUSE_S)
        time.sleep(max(0.0, stopped_s + STOPPED_S - time.monotonic()))
        over = evidence.last_lease_step(running.engine)
    finally:  # or the drills that follow would meet them
        for cure in cures:
            cure()
            time.sleep(chance.uniform(0, PAUSE_S))
    ended = evidence.all_ended(running.engine, client, sizes, until_s)
    books = judge_books(
        running.engine, client, [Ended(job, sizes[key]) for key, job in ended.items()]
    )
    stops = [Stop(host, role, began, over) for role in LEASED]
    found = [*judge_stops(setting, stops), *books]
    return with_enough_losses(found, 1)


def _busier(running: Installation, chance: random.Random) -> str:
    """Return the host whose intake holds more leases; the seed chooses between equals."""
    hosts = chance.sample(sorted(running.hosts), len(running.hosts))
    return max(hosts, key=lambda h: evidence.leases_held(running.engine, LEASED[0], f"host_{h}"))


def _stop(running: Installation, host: str, role: str) -> Cure:
    """Stop a role, one that holds leases while it holds one if that happens soon."""
    if role in LEASED:
        with contextlib.suppress(DrillError):
            wait_until(
                lambda: evidence.leases_held(running.engine, role, f"host_{host}") > 0,
                HELD_S_MAX,
                "a lease",
            )
    return pause(running, f"{host}/{role}")
