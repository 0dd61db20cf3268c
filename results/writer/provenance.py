"""Counts which model versions and engines ran the items of jobs, in the writer's transaction.

    outcomes ─► `OutcomeProvenance` ─► groups of items ─► number and count in `job_provenance`
                                                └► the number in each row of `items`

A number is found or created under the lock on the counters of the job, and its count grows in the
transaction that inserts the rows, so a redelivery changes nothing.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from results.writer.statements import COUNT_PROVENANCE
from storage.postgres.engines import Cursor
from topics.records.records import ItemOutcome, JobRef


class Provenance(NamedTuple):
    """What ran an item."""

    model: str  # as the request names it
    model_version: str
    base_version: str = ""  # of an adapter
    engine: str = ""  # its hash; empty: unknown


class ItemGroup(NamedTuple):
    """Items of one job with the same provenance, in the order of the log."""

    job_id: UUID
    items: Sequence[ItemOutcome]
    provenance: Provenance | None = None  # None: unknown
    has_run: bool = False  # False: the rows of these items name no provenance


class OutcomeProvenance:
    """The provenance of each outcome of a transaction.

    Almost every job has one in a transaction, and then nothing is kept for a single outcome.
    """

    def __init__(self) -> None:
        self._of_job: dict[UUID, Provenance] = {}
        # By identity: an item may have several outcomes, of several replicas. The outcome is kept,
        # so that no other object can get its identity.
        self._of_outcome: dict[int, tuple[ItemOutcome, Provenance]] = {}
        self._is_mixed: set[UUID] = set()

    def add(self, job: JobRef, engine: str, outcomes: Iterable[ItemOutcome]) -> None:
        """Add the outcomes of a record."""
        provenance = Provenance(job.model, job.model_version, job.base_version, engine)
        self._add(job.job_id, provenance, outcomes)

    def _add(self, job_id: UUID, provenance: Provenance, outcomes: Iterable[ItemOutcome]) -> None:
        if self._of_job.setdefault(job_id, provenance) != provenance:
            self._is_mixed.add(job_id)
            self._of_outcome |= {id(outcome): (outcome, provenance) for outcome in outcomes}

    def replaced(self, job_id: UUID, outcome: ItemOutcome, by: ItemOutcome) -> "OutcomeProvenance":
        """Return the provenance in which `by` alone has the provenance of `outcome`."""
        replaced = OutcomeProvenance()
        provenance = self._find(job_id, outcome)
        if provenance is not None:
            replaced._add(job_id, provenance, [by])
        return replaced

    def group_items(self, job_id: UUID, items: Sequence[ItemOutcome]) -> list[ItemGroup]:
        """Group items of a job by provenance, in the order of their first items."""
        provenance = self._of_job.get(job_id)
        if provenance is None:
            return [ItemGroup(job_id, items)]
        if provenance.engine and job_id not in self._is_mixed:
            return [ItemGroup(job_id, items, provenance, has_run=True)]
        groups: dict[tuple[Provenance, bool], list[ItemOutcome]] = {}
        for item in items:
            found = self._find(job_id, item) or provenance
            # Of an unknown engine: an item without an answer was ended by another component.
            key = found, bool(found.engine or item.status_code)
            groups.setdefault(key, []).append(item)
        return [
            ItemGroup(job_id, group, found, has_run) for (found, has_run), group in groups.items()
        ]

    def _find(self, job_id: UUID, outcome: ItemOutcome) -> Provenance | None:
        own = self._of_outcome.get(id(outcome))
        return self._of_job.get(job_id) if own is None else own[1]


UNKNOWN_PROVENANCE: Final = OutcomeProvenance()
"""Of outcomes whose provenance is not known."""

_Key = tuple[UUID, Provenance]


def count_provenance(cursor: Cursor, groups: Iterable[ItemGroup]) -> dict[_Key, int]:
    """Add the items of `groups` to the counts of their provenance; return the number of each.

    The counters of the jobs are locked, and the rows are inserted in the same transaction.
    """
    counts: dict[_Key, int] = {}
    for group in groups:
        if group.has_run and group.provenance is not None:
            counts[group.job_id, group.provenance] = len(group.items)
    if not counts:
        return {}
    rows = [(job_id, *provenance, count) for (job_id, provenance), count in counts.items()]
    columns = [list(column) for column in zip(*rows, strict=True)]
    cursor.execute(COUNT_PROVENANCE, columns, prepare=False)
    return {(job_id, Provenance(*names)): number for job_id, number, *names in cursor}
