"""Replays the log of ended jobs through the writer's own code into shadow tables.

The same code gives the same rows, unless the limit of attempts has changed since; signs of that are
counted. The caller has checked that the log has the first record of each job.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.errors import MillraceError, RecordUnreadableError
from jobs.recovery.retry_policy import RetryRules
from results.audit.job_log import PartitionLog, partition_log
from results.settings import WriterSettings
from results.writer.copied_results import CopyWriter
from results.writer.day_partitions import DayPartitions
from results.writer.failure_handling import code_of
from results.writer.item_writer import ItemWriter
from results.writer.job_closer import JobCloser
from results.writer.open_work import run_all
from results.writer.record_groups import Entry, grouped, read_record
from results.writer.writer import OutcomeRouter
from topics.records.catalogue import RESULTS
from topics.records.received_record import ReceivedRecord
from topics.records.records import Outcomes
from topics.settings import KafkaSettings
from topics.tail_readers.offset_ranges import OffsetRangeReader

LOG = logging.getLogger(__name__)

_CLIENT: Final = "millrace-rebuild"

_COUNTS_CRASHES: Final = "item_crashes_engine"
"""Code of poison items, whose number of attempts includes the crashes they caused."""


class LogTooSlowError(MillraceError):
    """The log could not be read to its end in time. Allow more time."""

    code = "log_too_slow"


@dataclass(frozen=True, slots=True)
class LogReplay:
    """Replays partitions of `results`. Not thread-safe."""

    kafka: KafkaSettings
    limits: WriterSettings
    timeout_s: float  # bounds the reading of one partition

    def partition(self, number: int) -> PartitionLog:
        """Return the present extent of a partition. Raises KafkaUnavailableError."""
        with self._reader() as reader:
            return partition_log(reader, number)

    def run(
        self, shadow: sa.Engine, log: PartitionLog, job_ids: Collection[UUID]
    ) -> Mapping[UUID, int]:
        """Replay the records of these jobs; return how many executions each has above the limit.

        Raises LogTooSlowError, KafkaUnavailableError, SchemaTooNewError, one of
        DATABASE_UNAVAILABLE.
        """
        settings, tables = self.limits, _OneTable(shadow)
        rules = RetryRules(attempts_max=settings.attempts_max)
        router = OutcomeRouter(
            items=ItemWriter(shadow, tables, retries=rules),
            closes=JobCloser(shadow, tables, slice_items=settings.close_slice_items),
            copies=CopyWriter(shadow),
        )
        never = threading.Event()
        above: Counter[UUID] = Counter()
        for entries in self._entries(log, {job_id.bytes for job_id in job_ids}):
            above.update(jobs_above_limit(entries, settings.attempts_max))
            for group in grouped(
                entries, items_max=settings.group_items_max, bytes_max=settings.group_bytes_max
            ):
                run_all(router.route(group), never)
        return above

    def _entries(self, log: PartitionLog, keys: Collection[bytes]) -> Iterator[list[Entry]]:
        with self._reader() as reader:
            for records in reader.read([log.offset_range], time.monotonic() + self.timeout_s):
                yield [entry for r in records if r.key in keys if (entry := _entry(r))]
            if not reader.has_read_all([log.offset_range]):
                raise LogTooSlowError

    def _reader(self) -> closing[OffsetRangeReader]:
        return closing(OffsetRangeReader(self.kafka, RESULTS, client_id=_CLIENT))


def jobs_above_limit(entries: Iterable[Entry], attempts_max: int) -> Iterator[UUID]:
    """Yield the job of each execution that a limit of `attempts_max` would not allow."""
    for entry in entries:
        if not isinstance(entry.record, Outcomes):
            continue
        for item in entry.record.items:
            if item.attempt > attempts_max and code_of(item) != _COUNTS_CRASHES:
                yield entry.record.job.job_id


class _OneTable(DayPartitions):
    """The `items` of the shadow schema, which is one table without partitions."""

    def ensure(self, days: Iterable[int]) -> None:
        """Create nothing."""


def _entry(received: ReceivedRecord) -> Entry | None:
    """Decode a record; None for records that the writer skipped. Raises SchemaTooNewError."""
    try:
        record = read_record(received)
    except RecordUnreadableError:
        LOG.warning("record unreadable", extra={"offset": received.offset})
        return None
    place = (received.topic, received.partition)
    return Entry(place, received.offset + 1, len(received.value or b""), record)
