"""P10: loss of one of three brokers, and of all brokers."""

import contextlib
import math
import random
import time
from collections.abc import Iterator, Sequence
from typing import Final

from chaos.checkers import outages
from chaos.checkers.end_states import MAY_BE_CANCELLED
from chaos.checkers.outages import RATE_MIN, Sample, rate, seconds_to_recovery
from chaos.clients.client import Client, input_lines, job_body
from chaos.clients.observers import probing
from chaos.drills.context import MODEL, DrillContext
from chaos.drills.recovery import RECOVERED_SHARE, SETTLED_S, record_samples, sampling
from chaos.errors import DrillError
from chaos.faults import processes
from chaos.faults.healing import require_target
from chaos.measures import Measure, duration, violations
from chaos.observations import database
from chaos.verification.acknowledged import check_jobs
from chaos.verification.reconciliation import EndedJob, reconcile_jobs

ITEMS: Final = 40_000
WINDOW_S: Final = 2.0
ONE_S_MAX: Final = 30.0
ALL_S_MAX: Final = 60.0
LEAD_S: Final = 5.0
SAMPLE_S: Final = 1.0
END_S_MAX: Final = 300.0
CREATE: Final = "create batch"


def run(context: DrillContext) -> Iterator[Measure]:
    """Kill each broker in turn under load, and then all of them."""
    installation = context.installation
    client = context.client("brokers")
    until_s = time.monotonic() + END_S_MAX
    tiny = client.upload(f"tiny-{context.seed}", input_lines(1, MODEL), until_s)
    file_id = client.upload(f"brokers-{context.seed}", input_lines(ITEMS, MODEL), until_s)
    host = installation.hosts["a"]
    requests = {CREATE: {"method": "POST", "url": "/v1/batches", "json": job_body(tiny)}}
    names = [f"kafka-{node + 1}" for node in range(installation.spec.broker_count)]
    random.Random(context.seed).shuffle(names)
    with probing(context.recorder, host.url, host.key, requests):
        for name in names:
            job = client.create(f"lose-{context.seed}-{name}", file_id, until_s)
            yield from _kill_brokers(context, client, job["id"], [name], context.size(15, 6))
        job = client.create(f"lose-{context.seed}-all", file_id, until_s)
        yield from _kill_brokers(context, client, job["id"], names, context.size(60, 15))
    yield from _check_acceptance(context)


def _kill_brokers(
    context: DrillContext, client: Client, job_id: str, names: list[str], down_s: float
) -> list[Measure]:
    engine = context.engine
    database.await_progress(engine, 500)
    is_one = len(names) == 1
    limit_s = ONE_S_MAX if is_one else ALL_S_MAX
    with sampling(engine) as samples, contextlib.ExitStack() as cleanup:
        time.sleep(LEAD_S)
        lost_s = time.monotonic()
        before = rate(samples, lost_s - LEAD_S + 1, lost_s)
        if before < RATE_MIN:
            raise DrillError(f"{before:.1f} items/s before the loss: too few to measure a recovery")
        for name in names:
            cleanup.callback(
                require_target(processes.kill_service(context.installation, name), name)
            )
        if not is_one:
            time.sleep(down_s)
            _require_down(context, names)
            for name in names:
                context.installation.allow_start(name)
        since_s = lost_s if is_one else time.monotonic()
        took_s = _await_recovery(samples, since_s, RECOVERED_SHARE * before, limit_s)
        if is_one:
            _require_down(context, names)
    record_samples(context, " ".join(names), samples, lost_s)
    ended = database.cancel_jobs(engine, client, [job_id], time.monotonic() + 120)
    time.sleep(down_s if is_one else 0)  # until replicas are in sync again
    lost = "one broker lost" if is_one else "all brokers lost and back"
    what, evidence = f"{lost}: until 90 % of the rate", f"{before:.0f} items/s before"
    context.note(f"{' '.join(names)}: {before:.0f} items/s before, back after {took_s:.1f} s")
    return [
        duration("P10", what, took_s, limit_s, size=ITEMS, evidence=evidence),
        *reconcile_jobs(engine, client, [EndedJob(ended[job_id], ITEMS, MAY_BE_CANCELLED)]),
    ]


def _require_down(context: DrillContext, names: list[str]) -> None:
    """Raise DrillError when a killed broker is up: an unchanged rate would prove nothing."""
    if up := [name for name in names if context.installation.service_pid(name) is not None]:
        raise DrillError(f"{' '.join(up)} restarted while it had to stay down")


def _await_recovery(
    samples: Sequence[Sample], since_s: float, goal: float, limit_s: float
) -> float:
    """Return seconds until the rate has fallen and recovered; infinite if it does not."""
    took_s = math.inf
    while took_s == math.inf and time.monotonic() < since_s + limit_s + SETTLED_S + WINDOW_S:
        time.sleep(SAMPLE_S)
        seen = list(samples)
        if seen[-1].at_s >= since_s + SETTLED_S + WINDOW_S:  # the dip may come late
            took_s = seconds_to_recovery(seen, since_s, goal, over_s=WINDOW_S, settled_s=SETTLED_S)
    return took_s


def _check_acceptance(context: DrillContext) -> list[Measure]:
    seen = outages.probes(context.recorder.operations(), CREATE)
    refused = [str(probe) for probe in seen if not probe.is_good]
    until_s = time.monotonic() + END_S_MAX
    return [
        violations("P10", "creations that were refused or not answered", refused, size=len(seen)),
        *check_jobs(context, "P10", items=1, until_s=until_s),
    ]
