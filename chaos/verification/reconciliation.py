"""P2 and P4 of jobs that have ended, whatever drill they come from."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from chaos.checkers.answers import AnswerCheck, foreign_answers, input_bodies, is_simulated_answer
from chaos.checkers.end_states import ALL_SUCCEED, EndStates, unexpected_ends
from chaos.checkers.results import compare_ids, tally_from_job, tally_mismatches
from chaos.clients.client import Client, input_lines
from chaos.drills.context import MODEL
from chaos.observations.database import JobFiles, billed_usage, counter_tally
from chaos.reports.measures import Measure


class EndedJob(NamedTuple):
    """A job that has ended, how many items went in, and what had to become of them."""

    job: Mapping[str, Any]
    items: int
    ends: EndStates = ALL_SUCCEED
    content: bytes | None = None  # its input file; None: `input_lines` of so many items, no more
    is_own_answer: AnswerCheck | None = (
        is_simulated_answer  # None: of a model, whose answers nobody can tell
    )


class Reconciliation(NamedTuple):
    """What is wrong with one job; each has what a reader needs to look into it."""

    ids: int  # custom ids missing, doubled or foreign in the files
    ends: list[str]
    answers: list[str]  # custom ids of items with an answer or tokens of others
    difference: int  # of files and ledger
    counters: list[str]
    told: str


def reconcile_jobs(engine: sa.Engine, client: Client, jobs: Iterable[EndedJob]) -> list[Measure]:
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


def _books(engine: sa.Engine, client: Client, one: EndedJob) -> Reconciliation:
    job, files = one.job, JobFiles(client, one.job)
    miscount = compare_ids((f"item-{n}" for n in range(one.items)), files.custom_ids())
    ends = unexpected_ends(job["status"], files.error_codes(), one.ends)
    answers = _others_answers(one, files)
    difference = files.usage().difference(billed_usage(engine, job["id"]))
    read_counters = _miscounted(engine, job, files, one.items)
    told = ""
    if miscount.total or ends or answers or difference or read_counters:
        told = (
            f"{job['id']}, {job['status']}: {len(miscount.missing)} missing, "
            f"{len(miscount.doubled)} doubled, {len(miscount.foreign)} foreign, "
            f"{len(ends)} ended wrongly {ends[:3]}, "
            f"{len(answers)} with an answer of others {answers[:3]}, "
            f"bill differs by {difference} {read_counters}"
            + "".join(f", {reason}" for reason in files.unreadable)
        )
    return Reconciliation(miscount.total, ends, answers, difference, read_counters, told)


def _others_answers(one: EndedJob, files: JobFiles) -> list[str]:
    if one.is_own_answer is None:
        return []
    content = input_lines(one.items, MODEL) if one.content is None else one.content
    return foreign_answers(input_bodies(content), files.output, one.is_own_answer)


def _miscounted(engine: sa.Engine, job: Mapping[str, Any], files: JobFiles, size: int) -> list[str]:
    """Hold the counters, in the database and as the job shows them, against the files."""
    tallies = {
        "files": files.tally(),
        "counters": counter_tally(engine, job["id"]),
        "job": tally_from_job(job),
    }
    shown = (job.get("request_counts") or {}).get("total", -1)
    return tally_mismatches(size, tallies, {"request_counts": shown})
