"""P13: another tenant's jobs of one item beside the poison, and how long they took.

They are created at a steady pace, whether or not earlier ones have ended, so that a standstill
counts for every job that began in it, and timed by the database.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from chaos.checkers.acceptance import probed_ids
from chaos.checkers.results import tally_from_job
from chaos.clients.client import ENDPOINT, Client, input_lines
from chaos.clients.prober import Prober
from chaos.drills.another_tenant import another_tenant
from chaos.drills.context import MODEL, DrillContext
from chaos.errors import DrillError
from chaos.installations.settings import SESSION_S
from chaos.observations import database
from chaos.reports.measures import Measure
from cli.load.load_clients import percentile

CREATE: Final = "create batch"
ALONE_S: Final = 10.0
END_S_MAX: Final = 60.0
ADDED_S_MAX: Final = 2 * SESSION_S
"""A goal: with one replica a single freeze lasts longer until it is noticed."""

SHARE: Final = 0.95


@contextmanager
def neighbor_jobs(context: DrillContext) -> Iterator[Client]:
    """Create its jobs during a block, which begins when they have run alone for a while."""
    client = another_tenant(context, "bystander")
    file_id = client.upload(
        f"bystander-{context.seed}", input_lines(1, MODEL), time.monotonic() + END_S_MAX
    )
    body = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}
    asks = {CREATE: {"method": "POST", "url": "/v1/batches", "json": body}}
    prober = Prober(context.recorder, client.urls[0], client.key, asks)
    try:
        time.sleep(ALONE_S)
        yield client
    finally:
        prober.stop()


def check_neighbor(context: DrillContext, client: Client, job_id: str) -> list[Measure]:
    """Compare its jobs before the job of the poison with those after. Raises DrillError."""
    engine = context.installation.engine
    ids = probed_ids(context.recorder.operations())
    ended = database.await_jobs(engine, client, ids, time.monotonic() + END_S_MAX)
    began_s = database.job_timings(engine, [job_id])[job_id].created_s
    found = database.job_timings(engine, ids).values()
    waits = sorted((round(life.created_s - began_s, 2), round(life.took_s, 2)) for life in found)
    context.recorder.record("bystander", "waits", job_id, "ok", seconds_and_took=waits)
    alone = [life.took_s for life in found if life.created_s < began_s]
    beside = [life.took_s for life in found if life.created_s >= began_s]
    if not alone or not beside:
        raise DrillError("another tenant had no job to compare with")
    failed = [one["id"] for one in ended.values() if tally_from_job(one).succeeded != 1]
    return [
        Measure(
            promise="P13",
            what="added to the p95 of another tenant's jobs",
            unit="s",
            value=p95_increase_s(alone, beside),
            limit=ADDED_S_MAX,
            relation="goal",
            size=len(beside),
            evidence=f"p95 {percentile(alone, SHARE):.2f} s alone",
        ),
        Measure(
            promise="P13",
            what="jobs of another tenant that did not succeed",
            value=len(failed),
            size=len(ended),
            evidence=" ".join(failed[:5]),
        ),
    ]


def p95_increase_s(alone: Sequence[float], beside: Sequence[float]) -> float:
    """Return what the p95 grew by, in seconds; infinite where either has jobs that never ended."""
    before_s, after_s = percentile(alone, SHARE), percentile(beside, SHARE)
    is_known = math.isfinite(before_s) and math.isfinite(after_s)
    return round(after_s - before_s, 2) if is_known else math.inf
