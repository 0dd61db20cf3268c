"""Decodes records of `results` and groups them into transactions of bounded size, in log order.

Unreadable records go unchanged to the dead-letter topic.
"""

import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from core.errors import RecordUnreadableError
from results.metrics import DEAD_LETTERS
from results.writer.provenance import OutcomeProvenance
from topics.clients.dead_letter_copies import DeadLetterCopies
from topics.clients.offset_tracker import Partition
from topics.records.codec import decode_value, kind_of
from topics.records.kinds import KINDS
from topics.records.object_keys import ForeignObjectError, require_own_answer
from topics.records.received_record import ReceivedRecord
from topics.records.records import CopiesDue, ItemOutcome, JobClose, JobRef, Outcomes

LOG = logging.getLogger(__name__)

JobItems = dict[UUID, list[ItemOutcome]]
"""Outcomes by job, each list in the order of the log."""

_EXCLUSIVE: Final = (JobClose, CopiesDue)


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of `results` as read; `record` is None when it was unreadable."""

    partition: Partition
    next_offset: int
    size_bytes: int
    record: Outcomes | JobClose | CopiesDue | None


@dataclass(slots=True)
class Group:
    """The content of one transaction: outcomes, or one exclusive record, with their offsets."""

    jobs: JobItems = field(default_factory=dict)
    provenance: OutcomeProvenance = field(
        default_factory=OutcomeProvenance
    )  # of the outcomes in `jobs`
    calls: list[Outcomes] = field(default_factory=list)  # of connection-bound calls, to be billed
    process_ends: list[Outcomes] = field(default_factory=list)  # that items of jobs caused
    exclusive: JobClose | CopiesDue | None = None
    item_count: int = 0
    size_bytes: int = 0
    job_partitions: dict[UUID, Partition] = field(default_factory=dict)  # each job has one
    offsets: dict[Partition, int] = field(default_factory=dict)  # of the first records
    next_offsets: dict[Partition, int] = field(default_factory=dict)  # to commit

    @property
    def job_ids(self) -> Collection[UUID]:
        """The jobs that the group concerns."""
        return self.jobs.keys() if self.exclusive is None else {self.exclusive.job_id}

    def add(self, entry: Entry) -> None:
        """Add an entry; entries of a partition must come in order."""
        self.offsets.setdefault(entry.partition, entry.next_offset - 1)
        self.next_offsets[entry.partition] = entry.next_offset
        self.size_bytes += entry.size_bytes
        if isinstance(entry.record, Outcomes) and is_bill(entry.record.job):
            self.calls.append(entry.record)
            self.item_count += len(entry.record.items)
        elif isinstance(entry.record, Outcomes) and not entry.record.items:
            self.process_ends.append(entry.record)
        elif isinstance(entry.record, Outcomes):
            job_id = entry.record.job.job_id
            self.jobs.setdefault(job_id, []).extend(entry.record.items)
            self.provenance.add(entry.record.job, entry.record.engine, entry.record.items)
            self.job_partitions[job_id] = entry.partition
            self.item_count += len(entry.record.items)
        elif entry.record is not None:
            self.exclusive = entry.record


def is_bill(job: JobRef) -> bool:
    """Whether outcomes of `job` only report the cost of a connection-bound call."""
    return job.call is not None and not job.call.durable


def grouped(entries: Iterable[Entry], *, items_max: int, bytes_max: int) -> Iterator[Group]:
    """Yield groups within the bounds; a record above a bound is a group of its own.

    A Close or CopiesDue ends the current group and is a group of its own, so it keeps its place
    in the order. The next entry is read only after the yielded group was processed.
    """
    group = Group()
    for entry in entries:
        is_exclusive = isinstance(entry.record, _EXCLUSIVE)
        if group.next_offsets and (
            is_exclusive
            or group.item_count + _item_count(entry) > items_max
            or group.size_bytes + entry.size_bytes > bytes_max
        ):
            yield group
            group = Group()
        group.add(entry)
        if is_exclusive:
            yield group
            group = Group()
    if group.next_offsets:
        yield group


def _item_count(entry: Entry) -> int:
    return len(entry.record.items) if isinstance(entry.record, Outcomes) else 0


def read_entry(received: ReceivedRecord, copies: DeadLetterCopies) -> Entry:
    """Decode a record. Raises SchemaTooNewError: an older release must not skip the record."""
    record: Outcomes | JobClose | CopiesDue | None
    try:
        record = read_record(received)
    except RecordUnreadableError as error:
        record = None
        place = (received.topic, received.partition, received.offset)
        LOG.error("record unreadable", extra={"place": place, "reason": str(error)})  # noqa: TRY400  the cause may quote the value
        copies.send(received, code=error.code)
        DEAD_LETTERS.inc()
    partition = (received.topic, received.partition)
    return Entry(partition, received.offset + 1, len(received.value or b""), record)


def _require_own_answer(job: JobRef, key: str) -> None:
    """Refuse a record whose owner would be served the object of another tenant."""
    try:
        require_own_answer(job.job_id, key)
    except ForeignObjectError:
        raise RecordUnreadableError("the record names an object of another job") from None


def read_record(received: ReceivedRecord) -> Outcomes | JobClose | CopiesDue:
    """Decode the value. Raises RecordUnreadableError, SchemaTooNewError."""
    kind = kind_of(received.headers)
    if kind == KINDS[Outcomes]:
        outcomes = decode_value(Outcomes, received.value)
        if not outcomes.items and not outcomes.process_ends:
            raise RecordUnreadableError("the record holds neither outcomes nor process ends")
        for item in outcomes.items:
            if item.body_key:
                _require_own_answer(outcomes.job, item.body_key)
        return outcomes
    if kind == KINDS[JobClose]:
        return decode_value(JobClose, received.value)
    if kind == KINDS[CopiesDue]:
        return decode_value(CopiesDue, received.value)
    raise RecordUnreadableError(f"{kind} does not belong on this topic")
