"""P2 and P4 of jobs that have ended, whatever drill they come from."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from chaos.clients import Client
from chaos.evidence import Files, counters, ledger
from chaos.judges.results import billing_difference, compare_ids
from chaos.measures import Measure


class Ended(NamedTuple):
    """A job that has ended, and how many items went in."""

    job: Mapping[str, Any]
    items: int


def judge_books(engine: sa.Engine, client: Client, jobs: Iterable[Ended]) -> list[Measure]:
    """Return the measures of P2 and P4 over all of `jobs`, as one trial."""
    wrong, items, difference = 0, 0, 0
    evidence = []
    for job, size in jobs:
        files = Files(client, job)
        miscount = compare_ids((f"item-{n}" for n in range(size)), files.custom_ids())
        lines = files.usage()
        disagreement = billing_difference(
            lines, counters(engine, job["id"], lines.items), ledger(engine, job["id"])
        )
        if miscount.total or disagreement:
            evidence.append(
                f"{job['id']}, {job['status']}: {len(miscount.missing)} missing, "
                f"{len(miscount.doubled)} doubled, {len(miscount.foreign)} foreign, "
                f"bill differs by {disagreement}"
                + "".join(f", {told}" for told in files.unreadable)
            )
        wrong += miscount.total
        items += size
        difference = max(difference, disagreement)
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
            what="largest difference of files, counters and ledger",
            unit="tokens or items",
            value=difference,
            size=items,
            evidence=told,
        ),
    ]
