"""A12 with vLLM: seconds from a kill -9 of its replica until the work goes on. Reported only.

Most of it is vLLM's own start; `recovery` judges what is ours.
"""

import time
from typing import Final

from chaos.checkers.end_states import CANCEL_ASKED
from chaos.clients.client import input_lines
from chaos.drills.context import Setting
from chaos.drills.recovery import LEAD_S, PROGRESS_S_MAX, watch_kill
from chaos.faults import processes
from chaos.installations.hosts import wait_until
from chaos.observations import database
from chaos.reports.measures import Measure
from chaos.verification.reconciliation import Ended, judge_books

MODEL: Final = "tiny-llama"
ITEMS: Final = 60_000
"""More than are done while it is watched; the rest is cancelled."""
OVER_S: Final = 3.0
WATCHED_S: Final = 180.0


def run(setting: Setting) -> list[Measure]:
    """Kill the only replica in the middle of a job, and sample how many items have ended."""
    running = setting.running
    client = setting.client("engine-recovery")
    until_s = time.monotonic() + 600
    key = f"engine-recovery-{setting.seed}"
    job = client.create(
        key, client.upload(f"file-{key}", input_lines(ITEMS, MODEL), until_s), until_s
    )
    wait_until(lambda: database.settled(running.engine) > 500, PROGRESS_S_MAX, "progress")
    (host,) = running.hosts
    recovered = watch_kill(
        setting,
        "gpu-consumer with vLLM, its start included",
        lambda: processes.kill(running, f"{host}/gpu-consumer"),
        lead_s=2 * LEAD_S,
        over_s=OVER_S,
        watched_s=WATCHED_S,
    )
    client.cancel(job["id"], time.monotonic() + 60)
    until_s = time.monotonic() + 180
    ended = database.all_ended(running.engine, client, [job["id"]], until_s)
    done = Ended(ended[job["id"]], ITEMS, CANCEL_ASKED, is_own=None)
    return [recovered, *judge_books(running.engine, client, [done])]
