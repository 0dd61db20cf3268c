"""P12: a full disk stops acknowledgements, corrupts nothing, and recovers by itself."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from chaos.checkers import outages
from chaos.clients.client import input_lines, job_body
from chaos.clients.observers import probing
from chaos.drills.context import MODEL, DrillContext
from chaos.errors import NotServedError
from chaos.faults import disk
from chaos.measures import Measure, duration, violations
from chaos.observations import database
from chaos.verification.acknowledged import check_files, check_jobs

SIZE_MB: Final = 256
HEALTHY_S_MAX: Final = 60.0
ANSWER_S_MAX: Final = 10.0
END_S_MAX: Final = 240.0
BEFORE_S: Final = 3.0
FOLDERS: Final = {
    "database": "services/postgres",
    "log": "services/kafka-1",
    "object store": "host-a/objects",
}
REFUSING: Final = frozenset({"database", "object store"})
"""Disks that an acknowledgement needs; with a full log, acknowledged work waits in the outbox."""

STALLED_S: Final = 5.0
"""A job older than this is stalled; here a job takes a fraction of it."""

REFILL_S: Final = 1.0
UPLOAD: Final = "upload a file"
CREATE: Final = "create batch"
CONTENT: Final = b"{}\n" * 2000
ITEMS: Final = 20


def run(context: DrillContext) -> Iterator[Measure]:
    """Fill each disk in turn, keep it full, and free the space."""
    client = context.client("disk")
    file_id = client.upload(
        f"disk-{context.seed}", input_lines(ITEMS, MODEL), time.monotonic() + 60
    )
    requests: dict[str, Mapping[str, Any]] = {
        UPLOAD: {
            "method": "POST",
            "url": "/v1/files",
            "files": {"file": ("in.jsonl", CONTENT)},
            "data": {"purpose": "batch"},
        },
        CREATE: {"method": "POST", "url": "/v1/batches", "json": job_body(file_id)},
    }
    for name, folder in FOLDERS.items():
        yield from _fill(context, name, context.installation.spec.data / folder, requests)
    for unfinished in database.unfinished_jobs(context.engine):
        context.note(f"not ended yet: {unfinished}")
    until_s = time.monotonic() + END_S_MAX
    yield check_files(context, "P12", CONTENT)
    yield from check_jobs(context, "P12", items=ITEMS, until_s=until_s)


def _fill(
    context: DrillContext, name: str, folder: Path, requests: Mapping[str, Mapping[str, Any]]
) -> list[Measure]:
    host = context.installation.hosts["a"]
    with probing(context.recorder, host.url, host.key, requests):
        time.sleep(BEFORE_S)
        full_s = time.time()
        _keep_full(folder, full_s + context.size(60, 15))
        freed_s = time.time()
        stalled = database.unfinished_count(context.engine, full_s, freed_s - STALLED_S)
        took_s = _seconds_to_healthy(context, freed_s)
    history = context.recorder.operations()
    seen = [p for path in requests for p in outages.probes(history, path) if p.asked_s >= full_s]
    improper = list(map(str, outages.improper_refusals(seen, proper=(503, 507))))
    longest_s, size = outages.longest_response_s(seen), len(seen)
    refused = sum(not probe.is_good and probe.answered_s <= freed_s for probe in seen)
    context.note(f"{name}: {refused} of {len(seen)} refused, healthy after {took_s:.1f} s")
    what = f"{name} full: answers that are neither good nor 503 or 507"
    return [
        violations("P12", what, improper, size=size),
        duration("P12", f"{name} full: longest answer", longest_s, ANSWER_S_MAX, size=size),
        duration("P12", f"{name} full: from space to a new job's end", took_s, HEALTHY_S_MAX),
        Measure(
            "P12",
            f"{name} full: requests that were refused meanwhile",
            refused,
            limit=1,
            relation=">=" if name in REFUSING else "report",
            size=size,
        ),
        Measure(
            "P12",
            f"{name} full: jobs that stood still until there was space",
            stalled,
            limit=1,
            relation="report" if name in REFUSING else ">=",
            size=size,
        ),
    ]


def _keep_full(folder: Path, until_s: float) -> None:
    """Keep a disk full until a moment, also when a process frees some of it meanwhile."""
    free = disk.fill(folder)
    try:
        while (left_s := until_s - time.time()) > 0:
            time.sleep(min(REFILL_S, left_s))
            disk.fill(folder)
    finally:
        free()


def _seconds_to_healthy(context: DrillContext, freed_s: float) -> float:
    """Return seconds from the freed space until a new job has completed."""
    client = context.client("healthy")
    until_s = time.monotonic() + 2 * HEALTHY_S_MAX
    key = f"healthy-{freed_s}"
    try:
        job = client.submit(key, input_lines(ITEMS, MODEL), until_s)
    except NotServedError as failure:
        context.note(str(failure))
        return float("inf")
    ended = client.await_terminal([job["id"]], until_s).get(job["id"])
    if ended is None or ended["status"] != "completed":
        return float("inf")
    return time.time() - freed_s
