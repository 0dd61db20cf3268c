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
from chaos.measures import Measure
from chaos.nemeses.processes import pause
from chaos.settings_of_drills import SESSION_S

ROLES: Final = ("intake", "batcher", "gpu-consumer", "results-writer", "finaliser")
ITEMS: Final = 4000
JOB_S_MAX: Final = 120.0
STOPPED_S: Final = 3 * SESSION_S


def run(setting: Setting) -> list[Measure]:
    """Stop roles of one host in the middle of two jobs, and judge what the jobs came to."""
    chance = random.Random(setting.seed)
    running = setting.running
    host = chance.choice(list(running.hosts))
    roles = list(ROLES) if setting.long else chance.sample(ROLES, 3)
    client = setting.client("zombies")
    until_s = time.monotonic() + JOB_S_MAX
    jobs = []
    before = evidence.settled(running.engine)
    for number in range(2):
        key = f"zombie-{setting.seed}-{number}"
        file_id = client.upload(f"file-{key}", input_lines(ITEMS, MODEL), until_s)
        jobs.append(client.create(key, file_id, until_s)["id"])
    goal = before + chance.randrange(100, ITEMS)
    wait_until(lambda: evidence.settled(running.engine) >= goal, JOB_S_MAX, "progress")
    cures = [pause(running, f"{host}/{role}") for role in roles]
    time.sleep(STOPPED_S)
    for cure in cures:
        cure()
        time.sleep(chance.uniform(0, PAUSE_S))
    ended = client.await_ends(jobs, until_s)
    if len(ended) < len(jobs):
        raise DrillError(f"not terminal after zombies: {evidence.stuck(running.engine)}")
    trials = [
        Measure(
            promise="P9",
            what=f"stopped for 3 leases: {role}",
            value=0,
            relation="report",
            unit="",
            size=ITEMS,
        )
        for role in roles
    ]
    books = judge_books(running.engine, client, [Ended(job, ITEMS) for job in ended.values()])
    return [*trials, *books, *judge_lives(setting)]
