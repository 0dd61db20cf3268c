"""P2 and P4 of jobs that have ended, whatever drill they come from."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from chaos.clients import Client
from chaos.evidence import Files, counters, ledger
from chaos.judges.results import compare_ids, miscounted, tally_shown
from chaos.measures import Measure


class Ended(NamedTuple):
    """A job that has ended, and how many items went in."""

    job: Mapping[str, Any]
    items: int


def judge_books(engine: sa.Engine, client: Client, jobs: Iterable[Ended]) -> list[Measure]:
    """Return the measures of P2 and P4 over all of `jobs`, as one trial."""
    wrong, items, difference, numbers = 0, 0, 0, 0
    evidence = []
    for job, size in jobs:
        items += size
        files = Files(client, job)
        miscount = compare_ids((f"item-{n}" for n in range(size)), files.custom_ids())
        disagreement = files.usage().difference(ledger(engine, job["id"]))
        mistakes = _miscounted(engine, job, files, size)
        if miscount.total or disagreement or mistakes:
            evidence.append(
                f"{job['id']}, {job['status']}: {len(miscount.missing)} missing, "
                f"{len(miscount.doubled)} doubled, {len(miscount.foreign)} foreign, "
                f"bill differs by {disagreement} {mistakes}"
                + "".join(f", {told}" for told in files.unreadable)
            )
        wrong += miscount.total
        difference = max(difference, disagreement)
        numbers += len(mistakes)
    told = "; ".join(evidence[:5])
    return [
        Measure(
            promise="P2",
            what="custom ids missing or doubled in the files",
            value=wrong,
            size=items,
            evidence=told,
        ),
        Measure(
            promise="P4",
            what="largest difference of files and ledger",
            unit="tokens or items",
            value=difference,
            size=items,
            evidence=told,
        ),
        Measure(
            promise="P4",
            what="counters of a job that differ from its files",
            value=numbers,
            size=items,
            evidence=told,
        ),
    ]


def _miscounted(engine: sa.Engine, job: Mapping[str, Any], files: Files, size: int) -> list[str]:
    """Hold the counters, in the database and as the job shows them, against the files."""
    tallies = {
        "files": files.tally(),
        "counters": counters(engine, job["id"]),
        "job": tally_shown(job),
    }
    shown = (job.get("request_counts") or {}).get("total", -1)
    return miscounted(size, tallies, {"request_counts": shown})
