"""P3: what a kill -9 of a replica or a batcher makes run again, counted where it runs."""

import random
import time
from typing import Final

from chaos import evidence
from chaos.clients import input_lines
from chaos.drills.books import Ended, judge_books
from chaos.drills.setting import Setting
from chaos.failures import DrillError
from chaos.hosts import wait_until
from chaos.judges.executions import repeated
from chaos.measures import Measure
from chaos.nemeses.processes import kill

ITEMS: Final = 2000
JOB_S_MAX: Final = 180.0
MODEL: Final = "small"
BATCH_ITEMS: Final = 100
IN_FLIGHT_MAX: Final = {"gpu-consumer": 3 * BATCH_ITEMS, "batcher": 2000}
"""Executions that one death may repeat: two granted batches and what the engine runs; what is
dispatched within a commit interval."""


def run(setting: Setting) -> list[Measure]:
    """Kill one role in the middle of a job and count executions."""
    chance = random.Random(setting.seed)
    role = ("gpu-consumer", "batcher")[setting.seed % 2]
    name = f"rework-{setting.seed}"
    client = setting.client(name)
    until_s = time.monotonic() + JOB_S_MAX
    texts = {number: f"{name} {number}" for number in range(ITEMS)}
    file_id = client.upload(f"file-{name}", input_lines(ITEMS, MODEL, texts), until_s)
    job = client.create(name, file_id, until_s)
    seen = setting.starts(name)
    at = chance.randrange(ITEMS // 10, ITEMS * 8 // 10)
    wait_until(lambda: len(seen()) >= at, JOB_S_MAX, "progress")
    kill(setting.running, f"a/{role}")
    ended = client.await_ends([job["id"]], until_s)
    if not ended:
        raise DrillError(f"not terminal: {evidence.stuck(setting.running.engine)}")
    return [
        Measure(
            promise="P3",
            what=f"items executed again after a kill of the {role}",
            value=repeated(seen()),
            limit=IN_FLIGHT_MAX[role],
            size=ITEMS,
        ),
        *judge_books(setting.running.engine, client, [Ended(ended[job["id"]], ITEMS)]),
    ]
