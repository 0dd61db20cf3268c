"""What one transaction of the writer takes: outcomes up to a bound, in the order of the log."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from topics.clients.offsets import Partition
from topics.records.records import Close, CopiesDue, ItemOutcome, JobRef, Outcomes

JobItems = dict[UUID, list[ItemOutcome]]
"""Outcomes by job, each list in the order of the log."""

_ALONE: Final = (Close, CopiesDue)


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of `results` as it was read; None for one that could not be."""

    partition: Partition
    next_offset: int
    size_bytes: int
    record: Outcomes | Close | CopiesDue | None


@dataclass(slots=True)
class Group:
    """Outcomes for one transaction, or what stands alone, with the offsets that are done then."""

    jobs: JobItems = field(default_factory=dict)
    calls: list[Outcomes] = field(default_factory=list)  # of no job: only the ledger hears of them
    alone: Close | CopiesDue | None = None
    item_count: int = 0
    size_bytes: int = 0
    places: dict[UUID, Partition] = field(default_factory=dict)  # of `jobs`: each has one
    offsets: dict[Partition, int] = field(default_factory=dict)  # of its first records
    next_offsets: dict[Partition, int] = field(default_factory=dict)

    @property
    def job_ids(self) -> Collection[UUID]:
        """The jobs whose items it concerns."""
        return self.jobs.keys() if self.alone is None else {self.alone.job_id}

    def add(self, entry: Entry) -> None:
        """Take an entry over; entries of a partition come in its order."""
        self.offsets.setdefault(entry.partition, entry.next_offset - 1)
        self.next_offsets[entry.partition] = entry.next_offset
        self.size_bytes += entry.size_bytes
        if isinstance(entry.record, Outcomes) and is_bill(entry.record.job):
            self.calls.append(entry.record)
            self.item_count += len(entry.record.items)
        elif isinstance(entry.record, Outcomes):
            job_id = entry.record.job.job_id
            self.jobs.setdefault(job_id, []).extend(entry.record.items)
            self.places[job_id] = entry.partition
            self.item_count += len(entry.record.items)
        elif entry.record is not None:
            self.alone = entry.record


def is_bill(job: JobRef) -> bool:
    """Whether outcomes of `job` only say what a connection-bound call has cost."""
    return job.call is not None and not job.call.durable


def grouped(entries: Iterable[Entry], *, items_max: int, bytes_max: int) -> Iterator[Group]:
    """Yield groups within the bounds; one record above them is a group of its own.

    What is no outcome ends the group before it and stands alone: it keeps its place in the order.
    No entry behind it is taken before it has been judged.
    """
    group = Group()
    for entry in entries:
        is_alone = isinstance(entry.record, _ALONE)
        if group.next_offsets and (
            is_alone
            or group.item_count + _item_count(entry) > items_max
            or group.size_bytes + entry.size_bytes > bytes_max
        ):
            yield group
            group = Group()
        group.add(entry)
        if is_alone:
            yield group
            group = Group()
    if group.next_offsets:
        yield group


def _item_count(entry: Entry) -> int:
    return len(entry.record.items) if isinstance(entry.record, Outcomes) else 0
