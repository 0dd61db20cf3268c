"""P2 and P4 of jobs that have ended, whatever drill they come from."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from chaos.checkers.answers import IsOwn, bodies_of, is_simulated, others_answers
from chaos.checkers.end_states import WHOLE, Ends, wrong_ends
from chaos.checkers.results import compare_ids, miscounted, tally_shown
from chaos.clients.client import Client, input_lines
from chaos.drills.context import MODEL
from chaos.observations.database import Files, counters, ledger
from chaos.reports.measures import Measure


class Ended(NamedTuple):
    """A job that has ended, how many items went in, and what had to become of them."""

    job: Mapping[str, Any]
    items: int
    ends: Ends = WHOLE
    content: bytes | None = None  # its input file; None: `input_lines` of so many items, no more
    is_own: IsOwn | None = is_simulated  # None: of a model, whose answers nobody can tell


class Books(NamedTuple):
    """What is wrong with one job; each has what a reader needs to look into it."""

    ids: int  # custom ids missing, doubled or foreign in the files
    ends: list[str]
    answers: list[str]  # custom ids of items with an answer or tokens of others
    difference: int  # of files and ledger
    counters: list[str]
    told: str


def judge_books(engine: sa.Engine, client: Client, jobs: Iterable[Ended]) -> list[Measure]:
    """Return the measures of P2 and P4 over all of `jobs`, as one trial."""
    size, found = 0, []
    for one in jobs:
        size += one.items
        found.append(_books(engine, client, one))
    told = "; ".join([books.told for books in found if books.told][:5])

    def measure(promise: str, what: str, value: int, unit: str = "") -> Measure:
        return Measure(promise=promise, what=what, value=value, unit=unit, size=size, evidence=told)

    return [
        measure(
            "P2", "custom ids missing or doubled in the files", sum(books.ids for books in found)
        ),
        measure(
            "P2",
            "jobs and items that ended otherwise than they had to",
            sum(len(books.ends) for books in found),
        ),
        measure(
            "P2",
            "items with an answer or tokens that are not their own",
            sum(len(books.answers) for books in found),
        ),
        measure(
            "P4",
            "largest difference of files and ledger",
            max((books.difference for books in found), default=0),
            "tokens or items",
        ),
        measure(
            "P4",
            "counters of a job that differ from its files",
            sum(len(books.counters) for books in found),
        ),
    ]


def _books(engine: sa.Engine, client: Client, one: Ended) -> Books:
    job, files = one.job, Files(client, one.job)
    miscount = compare_ids((f"item-{n}" for n in range(one.items)), files.custom_ids())
    ends = wrong_ends(job["status"], files.error_codes(), one.ends)
    answers = _others_answers(one, files)
    difference = files.usage().difference(ledger(engine, job["id"]))
    counted = _miscounted(engine, job, files, one.items)
    told = ""
    if miscount.total or ends or answers or difference or counted:
        told = (
            f"{job['id']}, {job['status']}: {len(miscount.missing)} missing, "
            f"{len(miscount.doubled)} doubled, {len(miscount.foreign)} foreign, "
            f"{len(ends)} ended wrongly {ends[:3]}, "
            f"{len(answers)} with an answer of others {answers[:3]}, "
            f"bill differs by {difference} {counted}"
            + "".join(f", {reason}" for reason in files.unreadable)
        )
    return Books(miscount.total, ends, answers, difference, counted, told)


def _others_answers(one: Ended, files: Files) -> list[str]:
    if one.is_own is None:
        return []
    content = input_lines(one.items, MODEL) if one.content is None else one.content
    return others_answers(bodies_of(content), files.output, one.is_own)


def _miscounted(engine: sa.Engine, job: Mapping[str, Any], files: Files, size: int) -> list[str]:
    """Hold the counters, in the database and as the job shows them, against the files."""
    tallies = {
        "files": files.tally(),
        "counters": counters(engine, job["id"]),
        "job": tally_shown(job),
    }
    shown = (job.get("request_counts") or {}).get("total", -1)
    return miscounted(size, tallies, {"request_counts": shown})
