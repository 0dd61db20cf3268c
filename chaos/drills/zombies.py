"""P9: roles of one host are stopped in the middle of their work for three leases, and let go on.

The other host takes over meanwhile. One role, or all of them at once, so that many are tried in
minutes: each stopped process is a trial of its own.
"""

import random
import time
from typing import Final

from chaos import evidence
from chaos.clients import PAUSE_S, input_lines
from chaos.drills.books import Ended, judge_books
from chaos.drills.lives import judge_lives
from chaos.drills.setting import MODEL, Setting
from chaos.failures import DrillError
from chaos.hosts import wait_until
from chaos.judges.fencing import zombie_writes
from chaos.measures import Measure
from chaos.nemeses.processes import pause
from chaos.reporting import STOPPED
from chaos.settings_of_drills import SESSION_S

ROLES: Final = ("intake", "batcher", "gpu-consumer", "results-writer", "finaliser")
ITEMS: Final = 8000
"""More than a window, so that intake still expands when it is stopped."""

SMALL_JOBS: Final = 20
SMALL_ITEMS: Final = 100
"""They end one after the other, so that finaliser and writer are always at work."""

JOB_S_MAX: Final = 180.0
STOPPED_S: Final = 3 * SESSION_S


def run(setting: Setting) -> list[Measure]:
    """Stop roles of one host in the middle of jobs, and judge what the jobs came to."""
    chance = random.Random(setting.seed)
    running = setting.running
    host = chance.choice(list(running.hosts))
    roles = list(ROLES) if setting.long else chance.sample(ROLES, 3)
    client = setting.client("zombies")
    until_s = time.monotonic() + JOB_S_MAX
    sizes = {}
    before = evidence.settled(running.engine)
    large = client.upload(f"large-{setting.seed}", input_lines(ITEMS, MODEL), until_s)
    small = client.upload(f"small-{setting.seed}", input_lines(SMALL_ITEMS, MODEL), until_s)
    sizes[client.create(f"zombie-{setting.seed}", large, until_s)["id"]] = ITEMS
    goal = before + chance.randrange(100, ITEMS // 4)
    wait_until(lambda: evidence.settled(running.engine) >= goal, JOB_S_MAX, "progress")
    cures, stopped_s = [], 0.0
    for number in range(SMALL_JOBS):
        job = client.create(f"zombie-{setting.seed}-{number}", small, until_s)
        sizes[job["id"]] = SMALL_ITEMS
        if number == SMALL_JOBS // 4:
            cures = [pause(running, f"{host}/{role}") for role in roles]
            stopped_s = time.monotonic()
        time.sleep(PAUSE_S)
    time.sleep(max(0.0, stopped_s + STOPPED_S - time.monotonic()))
    for cure in cures:
        cure()
        time.sleep(chance.uniform(0, PAUSE_S))
    ended = client.await_ends(sizes, until_s)
    if len(ended) < len(sizes):
        raise DrillError(f"not terminal after zombies: {evidence.stuck(running.engine)}")
    accepted = zombie_writes(evidence.lease_steps(running.engine))
    trials = [
        Measure(
            promise="P9",
            what=STOPPED,
            value=len(accepted),
            size=sum(sizes.values()),
            evidence=f"stopped: {role} of {host}" if accepted else "",
        )
        for role in roles
    ]
    books = judge_books(
        running.engine, client, [Ended(job, sizes[key]) for key, job in ended.items()]
    )
    return [*trials, *books, *judge_lives(setting)]
