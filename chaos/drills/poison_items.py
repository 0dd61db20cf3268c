"""P13: items that crash, freeze, hang or exhaust their replica fail alone; unusual ones succeed.

A file with invalid lines is refused as a whole before any item runs.
"""

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from chaos.checkers.acceptance import probed_ids
from chaos.checkers.end_states import EndStates, line_error_mismatches, unexpected_failures
from chaos.checkers.results import compare_ids, is_nan_answer, is_simulated_answer, tally_from_job
from chaos.clients.client import Client, input_lines, job_body
from chaos.clients.observers import probing
from chaos.drills.context import MODEL, DrillContext
from chaos.errors import DrillError, NotServedError
from chaos.installations.settings import CRASHING_FAULTS, NAN, POISON, SESSION_S
from chaos.measures import Measure, violations
from chaos.observations import database
from chaos.verification.reconciliation import EndedJob, JobFiles, reconcile_jobs
from cli.load.load_client import percentile

ITEMS: Final = 5000
STARTS_MAX: Final = 3
"""In its batch, in a tenth, alone."""
JOB_S_MAX: Final = 480.0
ENDS: Final[EndStates] = {"completed": frozenset(POISON.values())}
"""Allowed ends for the reconciliation, which does not know the positions of the poison."""
CREATE: Final = "create batch"
ALONE_S: Final = 10.0
NEIGHBOR_S_MAX: Final = 60.0
ADDED_S_MAX: Final = 2 * SESSION_S
"""A goal: with one replica, the detection of a single freeze takes longer."""

QUANTILE: Final = 0.95

_MB: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class EdgeCase:
    """The prompt of an item and its error code; None: it must succeed."""

    text: str
    code: str | None = None
    fields: Mapping[str, object] = field(default_factory=dict)  # further fields of its body


EDGE_CASES: Final[Mapping[str, EdgeCase]] = {
    **{fault: EdgeCase(f"POISON-{fault}", code) for fault, code in POISON.items()},
    NAN: EdgeCase(f"POISON-{NAN}"),
    "NUL in the prompt": EdgeCase("before\0after"),
    "stop string of 1 MB": EdgeCase("hello", fields={"stop": "s" * _MB}),
}

INVALID_LINES: Final[Mapping[int, str]] = {2: "invalid_json_line", 4: "line_too_long"}
"""Line of `invalid_file` to its error code."""


def run(context: DrillContext) -> Iterator[Measure]:
    """Run a job with poison at seeded positions, and another with an invalid file."""
    kinds = _draw_kinds(context)
    client = context.client("poison")
    deaths = _replica_deaths(context)
    until_s = time.monotonic() + JOB_S_MAX
    key = f"poison-{context.seed}"
    texts = {position: EDGE_CASES[kind].text for position, kind in kinds.items()}
    fields = {position: EDGE_CASES[kind].fields for position, kind in kinds.items()}
    content = input_lines(ITEMS, MODEL, texts, fields)
    file_id = client.upload(f"file-{key}", content, until_s)
    invalid_file_id = client.upload(f"bad-file-{key}", invalid_file(MODEL), until_s)
    with _neighbor_jobs(context) as other:
        job_id = client.create(key, file_id, until_s)["id"]
        invalid_job_id = client.create(f"bad-{key}", invalid_file_id, until_s)["id"]
        ended = database.await_jobs(context.engine, client, [job_id, invalid_job_id], until_s)
    yield from _check_items(client, ended[job_id], kinds)
    yield from _check_replica_deaths(_replica_deaths(context) - deaths, kinds)
    yield _check_invalid_file(ended[invalid_job_id])
    ended_job = EndedJob(ended[job_id], ITEMS, ENDS, content, is_own_answer)
    yield from reconcile_jobs(context.engine, client, [ended_job])
    yield from _check_neighbor(context, other, job_id)


def invalid_file(model: str) -> bytes:
    """Return a file with half of a surrogate pair in one line, and a 10 MB prompt in another."""
    content = input_lines(5, model, {1: "half of a pair: \ud800", 3: "p" * 10 * _MB})
    assert rb"\ud800" in content, "the surrogate must be escaped: it is not valid UTF-8"
    return content


def is_own_answer(body: bytes, answer: object) -> bool:
    """Return whether an answer belongs to a body; the answer for NaN identifies no item."""
    is_nan = EDGE_CASES[NAN].text.encode() in body
    return is_nan_answer(answer) if is_nan else is_simulated_answer(body, answer)


def _replica_deaths(context: DrillContext) -> int:
    """Count deaths of all hosts' replicas: a poison item may be redelivered to another host."""
    return sum(host.replica_deaths() for host in context.installation.hosts.values())


def _draw_kinds(context: DrillContext) -> dict[int, str]:
    """Return position in the file to kind of item: each kind in turn."""
    count = context.size(20, len(EDGE_CASES))
    positions = random.Random(context.seed).sample(range(ITEMS), count)
    names = list(EDGE_CASES)
    return {position: names[number % len(names)] for number, position in enumerate(positions)}


def _check_items(client: Client, job: Mapping[str, Any], kinds: Mapping[int, str]) -> list[Measure]:
    codes = {position: EDGE_CASES[kind].code for position, kind in kinds.items()}
    expected = {f"item-{position}": code for position, code in codes.items() if code is not None}
    wrong = unexpected_failures(expected, JobFiles(client, job).error_codes())
    try:
        shown = client.read_json_lines(f"/v1/batches/{job['id']}/results")
    except NotServedError:
        shown = []  # counts as all missing
    mismatch = compare_ids(
        (f"item-{n}" for n in range(ITEMS)), [line["custom_id"] for line in shown]
    )
    return [
        violations("P13", "items that ended otherwise than they had to", wrong, size=ITEMS),
        Measure(
            "P13", "items missing or doubled on the page of results", mismatch.total, size=ITEMS
        ),
    ]


def _check_replica_deaths(starts: int, kinds: Mapping[int, str]) -> list[Measure]:
    """Compare with the number of crashing items: other poison items end no process."""
    ending = sum(kind in CRASHING_FAULTS for kind in kinds.values())
    what = "starts of the replica for each item that ends it"
    return [
        Measure("P13", what, starts / ending, limit=STARTS_MAX, size=ending),
        Measure(
            "P13",
            "starts of the replica that were seen",
            starts,
            limit=1,  # 0: no item ended a process, or the count is broken
            relation=">=",
            size=ending,
        ),
    ]


def _check_invalid_file(job: Mapping[str, Any]) -> Measure:
    what = "lines of a refused file that were not told by number and code"
    wrong = line_error_mismatches(INVALID_LINES, job)
    return violations("P13", what, wrong, size=len(INVALID_LINES))


@contextmanager
def _neighbor_jobs(context: DrillContext) -> Iterator[Client]:
    """Create another tenant's jobs during a block, which starts after `ALONE_S` of them.

    Each has one item. They are created at a steady pace, whether or not earlier ones have ended, so
    that a stall counts for every job created in it.
    """
    client = context.create_tenant_client("bystander")
    file_id = client.upload(
        f"bystander-{context.seed}", input_lines(1, MODEL), time.monotonic() + NEIGHBOR_S_MAX
    )
    requests = {CREATE: {"method": "POST", "url": "/v1/batches", "json": job_body(file_id)}}
    with probing(context.recorder, client.urls[0], client.key, requests):
        time.sleep(ALONE_S)
        yield client


def _check_neighbor(context: DrillContext, client: Client, job_id: str) -> list[Measure]:
    """Compare the other tenant's jobs before the poison's job with those after. Raises DrillError.

    Times are those of the database.
    """
    engine = context.engine
    ids = probed_ids(context.recorder.operations())
    ended = database.await_jobs(engine, client, ids, time.monotonic() + NEIGHBOR_S_MAX)
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
