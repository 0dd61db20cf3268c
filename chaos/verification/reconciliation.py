"""P2 and P4: reconciles files, answers, counters and ledger of terminal jobs."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from chaos.checkers.end_states import ALL_SUCCEED, EndStates, unexpected_ends
from chaos.checkers.results import (
    AnswerCheck,
    Tally,
    Usage,
    compare_ids,
    foreign_answers,
    input_bodies,
    is_simulated_answer,
    tally_from_files,
    tally_from_job,
    tally_mismatches,
)
from chaos.clients.client import Client, input_lines
from chaos.drills.context import MODEL
from chaos.errors import NotServedError
from chaos.measures import Measure
from chaos.observations.database import billed_usage, counter_tally


class JobFiles:
    """The output and error files of a terminal job."""

    def __init__(self, client: Client, job: Mapping[str, Any]) -> None:
        """Read both files; every line of an unreadable file counts as missing."""
        self.unreadable: list[str] = []
        self.output = self._lines(client, job.get("output_file_id"))
        self.errors = self._lines(client, job.get("error_file_id"))

    def _lines(self, client: Client, file_id: str | None) -> list[dict[str, Any]]:
        try:
            return client.read_lines(file_id)
        except NotServedError as failure:
            self.unreadable.append(str(failure))
            return []

    def custom_ids(self) -> list[str]:
        """Return the custom ids in both files."""
        return [line["custom_id"] for line in self.output + self.errors]

    def usage(self) -> Usage:
        """Return the billed usage of the lines; a failed item with a response is billed."""
        usages = [line["response"]["body"]["usage"] for line in self.output]
        return Usage(
            items=len(self.output) + sum(bool(line.get("response")) for line in self.errors),
            input_tokens=sum(usage["prompt_tokens"] for usage in usages),
            output_tokens=sum(usage.get("completion_tokens", 0) for usage in usages),
        )

    def error_codes(self) -> dict[str, str]:
        """Return custom id to error code of the failed items."""
        return {line["custom_id"]: _code(line) for line in self.errors}

    def tally(self) -> Tally:
        """Return the items by outcome, and their tokens."""
        return tally_from_files(self.usage(), len(self.output), map(_code, self.errors))


def _code(line: Mapping[str, Any]) -> str:
    if line.get("error"):
        return str(line["error"]["code"])
    return str(line["response"]["body"]["error"]["code"])


class EndedJob(NamedTuple):
    """A terminal job, its number of items, and its allowed end states."""

    job: Mapping[str, Any]
    items: int
    ends: EndStates = ALL_SUCCEED
    content: bytes | None = None  # its input file; None: `input_lines` of so many items
    is_own_answer: AnswerCheck | None = is_simulated_answer  # None: a model's answers vary


class Reconciliation(NamedTuple):
    """The violations of one job."""

    id_mismatches: int = 0  # custom ids missing, duplicated or foreign in the files
    ends: int = 0  # the job and items with an end that is not allowed
    answers: int = 0  # items with an answer or tokens of another item
    counters: int = 0
    difference: int = 0  # of files and ledger
    details: str = ""


def reconcile_jobs(engine: sa.Engine, client: Client, jobs: Iterable[EndedJob]) -> list[Measure]:
    """Return the measures of P2 and P4 over all of `jobs`, as one trial."""
    size, found = 0, []
    for ended in jobs:
        size += ended.items
        found.append(_reconcile(engine, client, ended))
    details = "; ".join([one.details for one in found if one.details][:5])
    ids = sum(one.id_mismatches for one in found)
    ends = sum(one.ends for one in found)
    answers = sum(one.answers for one in found)
    counters = sum(one.counters for one in found)

    def measure(promise: str, what: str, value: int, unit: str = "") -> Measure:
        return Measure(promise, what, value, unit=unit, size=size, evidence=details)

    difference = max((one.difference for one in found), default=0)
    return [
        measure("P2", "custom ids missing or doubled in the files", ids),
        measure("P2", "jobs and items that ended otherwise than they had to", ends),
        measure("P2", "items with an answer or tokens that are not their own", answers),
        measure("P4", "largest difference of files and ledger", difference, "tokens or items"),
        measure("P4", "counters of a job that differ from its files", counters),
    ]


def _reconcile(engine: sa.Engine, client: Client, ended: EndedJob) -> Reconciliation:
    job, files = ended.job, JobFiles(client, ended.job)
    ids = compare_ids((f"item-{n}" for n in range(ended.items)), files.custom_ids())
    ends = unexpected_ends(job["status"], files.error_codes(), ended.ends)
    answers = _foreign_answers(ended, files)
    difference = files.usage().difference(billed_usage(engine, job["id"]))
    counters = _counter_mismatches(engine, job, files, ended.items)
    if not (ids.total or ends or answers or difference or counters):
        return Reconciliation()
    details = (
        f"{job['id']}, {job['status']}: {len(ids.missing)} missing, "
        f"{len(ids.duplicated)} doubled, {len(ids.foreign)} foreign, "
        f"{len(ends)} ended wrongly {ends[:3]}, "
        f"{len(answers)} with an answer of others {answers[:3]}, "
        f"bill differs by {difference} {counters}"
        + "".join(f", {reason}" for reason in files.unreadable)
    )
    return Reconciliation(ids.total, len(ends), len(answers), len(counters), difference, details)


def _foreign_answers(ended: EndedJob, files: JobFiles) -> list[str]:
    if ended.is_own_answer is None:
        return []
    content = input_lines(ended.items, MODEL) if ended.content is None else ended.content
    return foreign_answers(input_bodies(content), files.output, ended.is_own_answer)


def _counter_mismatches(
    engine: sa.Engine, job: Mapping[str, Any], files: JobFiles, size: int
) -> list[str]:
    """Compare the counters in the database and in the job object with the files."""
    tallies = {
        "files": files.tally(),
        "counters": counter_tally(engine, job["id"]),
        "job": tally_from_job(job),
    }
    shown = (job.get("request_counts") or {}).get("total", -1)
    return tally_mismatches(size, tallies, {"request_counts": shown})
