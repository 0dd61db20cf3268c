"""P13: latency of another tenant's jobs of one item while poison items run.

Jobs are created at a steady pace, whether or not earlier ones have ended, so that a stall counts
for every job created in it. Times are those of the database.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from chaos.checkers.acceptance import probed_ids
from chaos.checkers.results import tally_from_job
from chaos.clients.client import Client, input_lines, job_body
from chaos.clients.prober import probing
from chaos.drills.context import MODEL, DrillContext
from chaos.errors import DrillError
from chaos.installations.settings import SESSION_S
from chaos.observations import database
from chaos.reports.measures import Measure, violations
from cli.load.load_client import percentile

CREATE: Final = "create batch"
ALONE_S: Final = 10.0
END_S_MAX: Final = 60.0
ADDED_S_MAX: Final = 2 * SESSION_S
"""A goal: with one replica, the detection of a single freeze takes longer."""

QUANTILE: Final = 0.95


@contextmanager
def neighbor_jobs(context: DrillContext) -> Iterator[Client]:
    """Create the tenant's jobs during a block, which starts after `ALONE_S` of them."""
    client = context.create_tenant_client("bystander")
    file_id = client.upload(
        f"bystander-{context.seed}", input_lines(1, MODEL), time.monotonic() + END_S_MAX
    )
    requests = {CREATE: {"method": "POST", "url": "/v1/batches", "json": job_body(file_id)}}
    with probing(context.recorder, client.urls[0], client.key, requests):
        time.sleep(ALONE_S)
        yield client


def check_neighbor(context: DrillContext, client: Client, job_id: str) -> list[Measure]:
    """Compare the tenant's jobs before the poison's job with those after. Raises DrillError."""
    engine = context.engine
    ids = probed_ids(context.recorder.operations())
    ended = database.await_jobs(engine, client, ids, time.monotonic() + END_S_MAX)
    started_s = database.job_timings(engine, [job_id])[job_id].created_s
    found = database.job_timings(engine, ids).values()
    waits = sorted(
        (round(timing.created_s - started_s, 2), round(timing.took_s, 2)) for timing in found
    )
    context.recorder.record("bystander", "waits", job_id, "ok", seconds_and_took=waits)
    alone = [timing.took_s for timing in found if timing.created_s < started_s]
    during = [timing.took_s for timing in found if timing.created_s >= started_s]
    if not alone or not during:
        raise DrillError("the other tenant has no job to compare with")
    failed = [one["id"] for one in ended.values() if tally_from_job(one).succeeded != 1]
    return [
        Measure(
            "P13",
            "added to the p95 of another tenant's jobs",
            p95_increase_s(alone, during),
            unit="s",
            limit=ADDED_S_MAX,
            relation="goal",
            size=len(during),
            evidence=f"p95 {percentile(alone, QUANTILE):.2f} s alone",
        ),
        violations("P13", "jobs of another tenant that did not succeed", failed, size=len(ended)),
    ]


def p95_increase_s(alone: Sequence[float], during: Sequence[float]) -> float:
    """Return the increase of the p95 in seconds; infinite when a p95 job never completed."""
    before_s, after_s = percentile(alone, QUANTILE), percentile(during, QUANTILE)
    is_known = math.isfinite(before_s) and math.isfinite(after_s)
    return round(after_s - before_s, 2) if is_known else math.inf
