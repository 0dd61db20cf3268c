"""The log of ended jobs through the writer's own code, into shadow tables.

The same code judges, so the rows are the same, except where a setting of the writer has changed
since. Whether the log still holds a job from its first record on is known before.
"""

import logging
import math
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.errors import MillraceError, RecordUnreadableError
from jobs.retries import RetryRules
from results.closing import JobCloser
from results.deduplicating import CopyWriter
from results.groups import Entry, grouped
from results.judging import Judge
from results.open_work import do_all
from results.partitions import DayPartitions
from results.reading import read_record
from results.settings import WriterSettings
from results.writing import ItemWriter
from topics.catalogue import RESULTS
from topics.received import Received
from topics.settings import KafkaSettings
from topics.stretches import Stretch, StretchReader

LOG = logging.getLogger(__name__)

_CLIENT: Final = "millrace-rebuild"
_CLOCKS_DIFFER_S_MAX: Final = 600
"""How far apart the clocks of Postgres and a broker may be before a job's begin is missed."""


class LogTooSlowError(MillraceError):
    """The log could not be read to its end in time."""

    code = "log_too_slow"


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """What the log holds of one partition of `results`."""

    stretch: Stretch
    begins_s: float  # when its first record was appended; 0: nothing was ever deleted

    def holds(self, created_s: float) -> bool:
        """Whether a job that was created then is there from its first record on."""
        return self.begins_s < max(created_s - _CLOCKS_DIFFER_S_MAX, 0) or self.begins_s == 0


class LogReplay:
    """Replays partitions of `results`; one thread uses it."""

    def __init__(self, kafka: KafkaSettings, writer: WriterSettings, *, timeout_s: float) -> None:
        """`timeout_s` bounds the reading of one partition; `writer` is how it would be written."""
        self._kafka, self._writer, self._timeout_s = kafka, writer, timeout_s

    def partition(self, number: int) -> PartitionLog:
        """Return what the log holds of a partition now. Raises LogUnavailableError."""
        reader = StretchReader(self._kafka, RESULTS, client_id=_CLIENT)
        try:
            whole = reader.whole(number)
            if whole.first == 0:
                return PartitionLog(whole, 0.0)
            first = Stretch(number, whole.first, min(whole.first + 1, whole.end))
            for records in reader.read([first], time.monotonic() + self._timeout_s):
                for record in records:
                    return PartitionLog(whole, record.appended_ms / 1000)
        finally:
            reader.close()
        return PartitionLog(whole, math.inf)  # nothing is left of it

    def run(self, shadow: sa.Engine, log: PartitionLog, job_ids: Collection[UUID]) -> int:
        """Judge the records of these jobs; return their number.

        Raises LogTooSlowError, LogUnavailableError, SchemaTooNewError, one of DATABASE_AWAY.
        """
        settings, tables = self._writer, _OneTable(shadow)
        rules = RetryRules(attempts_max=settings.attempts_max)
        judge = Judge(
            items=ItemWriter(shadow, tables, retries=rules),
            closes=JobCloser(shadow, tables, slice_items=settings.close_slice_items),
            copies=CopyWriter(shadow),
        )
        never = threading.Event()
        count = 0
        for entries in self._entries(log, {job_id.bytes for job_id in job_ids}):
            count += len(entries)
            for group in grouped(
                entries, items_max=settings.group_items_max, bytes_max=settings.group_bytes_max
            ):
                do_all(judge.judge(group), never)
        return count

    def _entries(self, log: PartitionLog, keys: Collection[bytes]) -> Iterator[list[Entry]]:
        reader = StretchReader(self._kafka, RESULTS, client_id=_CLIENT)
        try:
            for records in reader.read([log.stretch], time.monotonic() + self._timeout_s):
                yield [entry for r in records if r.key in keys if (entry := _entry(r))]
            if not reader.is_through([log.stretch]):
                raise LogTooSlowError
        finally:
            reader.close()


class _OneTable(DayPartitions):
    """Days of `items` in shadow tables: it is one table there."""

    def ensure(self, days: Iterable[int]) -> None:
        """Every day has its place."""


def _entry(received: Received) -> Entry | None:
    """Return what was read; None for what the writer skipped, too. Raises SchemaTooNewError."""
    try:
        record = read_record(received)
    except RecordUnreadableError:
        LOG.warning("record unreadable", extra={"offset": received.offset})
        return None
    place = (received.topic, received.partition)
    return Entry(place, received.offset + 1, len(received.value or b""), record)
