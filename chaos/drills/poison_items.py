"""P13: items that crash, freeze, hang or exhaust their replica fail alone, and odd ones succeed.

What no line may hold is refused with its whole file, before any of it runs.
"""

import random
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from chaos.checkers.answers import is_nan_answer, is_simulated_answer
from chaos.checkers.end_states import EndStates
from chaos.checkers.poison import unexpected_failures
from chaos.checkers.refused_lines import line_error_mismatches
from chaos.checkers.results import compare_ids
from chaos.clients.client import Client, input_lines
from chaos.drills.context import MODEL, DrillContext
from chaos.errors import NotServedError
from chaos.installations.settings import ENDS_ITS_PROCESS, NAN, POISON
from chaos.observations import database
from chaos.reports.measures import Measure
from chaos.verification.reconciliation import EndedJob, reconcile_jobs
from chaos.workloads.edge_cases import EDGE_CASES, INVALID_LINES, invalid_file
from chaos.workloads.neighbor_tenant import check_neighbor, neighbor_jobs

ITEMS: Final = 5000
TRIES_MAX: Final = 3
JOB_S_MAX: Final = 480.0
ENDS: Final[EndStates] = {"completed": frozenset(POISON.values())}
"""Of the books, which do not know where the poison lies."""


def run(context: DrillContext) -> Iterator[Measure]:
    """Run a job with poison at seeded places, and beside it one whose file is refused."""
    kinds = _kinds(context)
    client = context.client("poison")
    deaths = _deaths(context)
    until_s = time.monotonic() + JOB_S_MAX
    key = f"poison-{context.seed}"
    texts = {place: EDGE_CASES[kind].text for place, kind in kinds.items()}
    fields = {place: EDGE_CASES[kind].fields for place, kind in kinds.items()}
    content = input_lines(ITEMS, MODEL, texts, fields)
    file_id = client.upload(f"file-{key}", content, until_s)
    bad = client.upload(f"bad-file-{key}", invalid_file(MODEL), until_s)
    with neighbor_jobs(context) as other:
        job_id = client.create(key, file_id, until_s)["id"]
        bad_id = client.create(f"bad-{key}", bad, until_s)["id"]
        ended = database.await_jobs(context.installation.engine, client, [job_id, bad_id], until_s)
    yield from _judge_items(client, ended[job_id], kinds)
    yield from _judge_starts(_deaths(context) - deaths, kinds)
    yield _judge_bad_file(ended[bad_id])
    done = EndedJob(ended[job_id], ITEMS, ENDS, content, is_own_answer)
    yield from reconcile_jobs(context.installation.engine, client, [done])
    yield from check_neighbor(context, other, job_id)


def is_own_answer(body: bytes, answer: object) -> bool:
    """Whether an answer is the one to a body; that of NaN says nothing of its item."""
    return (
        is_nan_answer(answer)
        if EDGE_CASES[NAN].text.encode() in body
        else is_simulated_answer(body, answer)
    )


def _deaths(context: DrillContext) -> int:
    """Count those of every host's replica: what ended one may come again to another."""
    return sum(host.deaths() for host in context.installation.hosts.values())


def _kinds(context: DrillContext) -> dict[int, str]:
    """Return places of the file to what lies there: each kind in turn."""
    count = context.size(20, len(EDGE_CASES))
    places = random.Random(context.seed).sample(range(ITEMS), count)
    names = list(EDGE_CASES)
    return {place: names[number % len(names)] for number, place in enumerate(places)}


def _judge_items(client: Client, job: Mapping[str, Any], kinds: Mapping[int, str]) -> list[Measure]:
    codes = {place: EDGE_CASES[kind].code for place, kind in kinds.items()}
    wanted = {f"item-{place}": code for place, code in codes.items() if code is not None}
    wrong = unexpected_failures(wanted, database.JobFiles(client, job).error_codes())
    try:
        shown = client.read_json_lines(f"/v1/batches/{job['id']}/results")
    except NotServedError:
        shown = []  # all of them are missing
    return [
        Measure(
            promise="P13",
            what="items that ended otherwise than they had to",
            value=len(wrong),
            size=ITEMS,
            evidence=str(dict(list(wrong.items())[:5])) if wrong else "",
        ),
        Measure(
            promise="P13",
            what="items missing or doubled on the page of results",
            value=compare_ids(
                (f"item-{n}" for n in range(ITEMS)), [line["custom_id"] for line in shown]
            ).total,
            size=ITEMS,
        ),
    ]


def _judge_starts(starts: int, kinds: Mapping[int, str]) -> list[Measure]:
    """Compare with the items that end their process: all other poison costs no start."""
    ending = sum(kind in ENDS_ITS_PROCESS for kind in kinds.values())
    return [
        Measure(
            promise="P13",
            what="starts of the replica for each item that ends it",
            value=starts / ending,
            limit=TRIES_MAX,
            size=ending,
        ),
        Measure(
            promise="P13",
            what="starts of the replica that were seen",
            value=starts,
            limit=1,  # none: such an item ended nothing, or the count is blind
            relation=">=",
            size=ending,
        ),
    ]


def _judge_bad_file(job: Mapping[str, Any]) -> Measure:
    wrong = line_error_mismatches(INVALID_LINES, job)
    return Measure(
        promise="P13",
        what="lines of a refused file that were not told by number and code",
        value=len(wrong),
        size=len(INVALID_LINES),
        evidence="; ".join(wrong),
    )
