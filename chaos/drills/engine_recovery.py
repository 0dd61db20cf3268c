"""A12 with vLLM: seconds from a kill of its replica until work continues. Reported only.

Most of it is the start of vLLM; `recovery` measures Millrace's share.
"""

import time
from typing import Final

from chaos.checkers.end_states import MAY_BE_CANCELLED
from chaos.clients.client import input_lines
from chaos.drills.context import DrillContext
from chaos.drills.recovery import LEAD_S, PROGRESS_S_MAX, measure_kill
from chaos.faults import processes
from chaos.installations.hosts import wait_until
from chaos.observations import database
from chaos.reports.measures import Measure
from chaos.verification.reconciliation import EndedJob, reconcile_jobs

MODEL: Final = "tiny-llama"
ITEMS: Final = 60_000
"""More than complete while the recovery is measured; the rest is cancelled."""
OVER_S: Final = 3.0
WATCHED_S: Final = 180.0


def run(context: DrillContext) -> list[Measure]:
    """Kill the only replica in the middle of a job, and sample the number of completed items."""
    installation = context.installation
    client = context.client("engine-recovery")
    until_s = time.monotonic() + 600
    key = f"engine-recovery-{context.seed}"
    job = client.create(
        key, client.upload(f"file-{key}", input_lines(ITEMS, MODEL), until_s), until_s
    )
    wait_until(
        lambda: database.succeeded_count(installation.engine) > 500, PROGRESS_S_MAX, "progress"
    )
    (host,) = installation.hosts
    recovered = measure_kill(
        context,
        "gpu-consumer with vLLM, its start included",
        lambda: processes.kill(installation, f"{host}/gpu-consumer"),
        lead_s=2 * LEAD_S,
        over_s=OVER_S,
        watched_s=WATCHED_S,
    )
    client.cancel(job["id"], time.monotonic() + 60)
    until_s = time.monotonic() + 180
    ended = database.await_jobs(installation.engine, client, [job["id"]], until_s)
    ended_job = EndedJob(ended[job["id"]], ITEMS, MAY_BE_CANCELLED, is_own_answer=None)
    return [recovered, *reconcile_jobs(installation.engine, client, [ended_job])]
