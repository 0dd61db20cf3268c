"""P13: items that crash, freeze, hang or exhaust their replica fail alone, and odd ones succeed.

What no line may hold is refused with its whole file, before any of it runs.
"""

import random
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from chaos.checkers.answers import is_of_nan, is_simulated
from chaos.checkers.end_states import Ends
from chaos.checkers.poison import wrongly_failed
from chaos.checkers.refused_lines import wrongly_told
from chaos.checkers.results import compare_ids
from chaos.clients.client import Client, input_lines
from chaos.drills.context import MODEL, Setting
from chaos.errors import NotServedError
from chaos.installations.settings import ENDS_ITS_PROCESS, NAN, POISON
from chaos.observations import database
from chaos.reports.measures import Measure
from chaos.verification.reconciliation import Ended, judge_books
from chaos.workloads.edge_cases import BAD_LINES, ODDITIES, bad_file
from chaos.workloads.neighbor_tenant import bystander, judge_bystander

ITEMS: Final = 5000
TRIES_MAX: Final = 3
JOB_S_MAX: Final = 480.0
ENDS: Final[Ends] = {"completed": frozenset(POISON.values())}
"""Of the books, which do not know where the poison lies."""


def run(setting: Setting) -> Iterator[Measure]:
    """Run a job with poison at seeded places, and beside it one whose file is refused."""
    kinds = _kinds(setting)
    client = setting.client("poison")
    deaths = _deaths(setting)
    until_s = time.monotonic() + JOB_S_MAX
    key = f"poison-{setting.seed}"
    texts = {place: ODDITIES[kind].text for place, kind in kinds.items()}
    fields = {place: ODDITIES[kind].fields for place, kind in kinds.items()}
    content = input_lines(ITEMS, MODEL, texts, fields)
    file_id = client.upload(f"file-{key}", content, until_s)
    bad = client.upload(f"bad-file-{key}", bad_file(MODEL), until_s)
    with bystander(setting) as other:
        job_id = client.create(key, file_id, until_s)["id"]
        bad_id = client.create(f"bad-{key}", bad, until_s)["id"]
        ended = database.all_ended(setting.running.engine, client, [job_id, bad_id], until_s)
    yield from _judge_items(client, ended[job_id], kinds)
    yield from _judge_starts(_deaths(setting) - deaths, kinds)
    yield _judge_bad_file(ended[bad_id])
    done = Ended(ended[job_id], ITEMS, ENDS, content, is_own)
    yield from judge_books(setting.running.engine, client, [done])
    yield from judge_bystander(setting, other, job_id)


def is_own(body: bytes, answer: object) -> bool:
    """Whether an answer is the one to a body; that of NaN says nothing of its item."""
    return is_of_nan(answer) if ODDITIES[NAN].text.encode() in body else is_simulated(body, answer)


def _deaths(setting: Setting) -> int:
    """Count those of every host's replica: what ended one may come again to another."""
    return sum(host.deaths() for host in setting.running.hosts.values())


def _kinds(setting: Setting) -> dict[int, str]:
    """Return places of the file to what lies there: each kind in turn."""
    count = setting.size(20, len(ODDITIES))
    places = random.Random(setting.seed).sample(range(ITEMS), count)
    names = list(ODDITIES)
    return {place: names[number % len(names)] for number, place in enumerate(places)}


def _judge_items(client: Client, job: Mapping[str, Any], kinds: Mapping[int, str]) -> list[Measure]:
    codes = {place: ODDITIES[kind].code for place, kind in kinds.items()}
    wanted = {f"item-{place}": code for place, code in codes.items() if code is not None}
    wrong = wrongly_failed(wanted, database.Files(client, job).error_codes())
    try:
        shown = client.json_lines(f"/v1/batches/{job['id']}/results")
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
    wrong = wrongly_told(BAD_LINES, job)
    return Measure(
        promise="P13",
        what="lines of a refused file that were not told by number and code",
        value=len(wrong),
        size=len(BAD_LINES),
        evidence="; ".join(wrong),
    )
