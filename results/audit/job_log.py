"""Reads the records of one job from the `results` topic, without a group and in bounded time.

Only a log that has all records of a job, from its first one on, can show that its rows are wrong.
"""

import math
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from core.errors import RecordUnreadableError
from results.audit.item_fingerprints import ItemFingerprints, RowFingerprints
from results.audit.log_tally import LogTally
from results.writer.record_groups import read_record
from results.writer.writer import GROUP
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import RESULTS
from topics.records.partitioner import job_partition
from topics.records.received_record import ReceivedRecord
from topics.settings import KafkaSettings
from topics.tail_readers.offset_ranges import OffsetRange, OffsetRangeReader

CLOCKS_DIFFER_S_MAX: Final = 600
"""Assumed bound on the difference between the clocks of Postgres and a broker."""

_ROW_EARLIER_S_MAX: Final = 10
"""How much earlier than the log a row may seem to be; topics take longer to be created again."""

_FIRST_S_MAX: Final = 10.0

_CLIENT: Final = "millrace-audit"


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """The extent of one partition of `results`."""

    offset_range: OffsetRange
    begins_s: float  # when its first record was appended; infinite without records

    def covers(self, created_s: float, first_row_s: float | None) -> bool:
        """Whether the log has all records of a job, from its first one on.

        `created_s` is when the job was created, `first_row_s` when its first row was written, None
        without rows. A log that begins at offset 0 is complete, or was created again: then it
        begins later than the rows of older jobs.
        """
        if self.begins_s < created_s - CLOCKS_DIFFER_S_MAX:
            return True
        if self.offset_range.first > 0:
            return False
        return first_row_s is None or self.begins_s < first_row_s + _ROW_EARLIER_S_MAX


def partition_log(reader: OffsetRangeReader, number: int) -> PartitionLog:
    """Return the present extent of a partition. Raises KafkaUnavailableError."""
    extent = reader.full_range(number)
    first = OffsetRange(number, extent.first, min(extent.first + 1, extent.end))
    for records in reader.read([first], time.monotonic() + _FIRST_S_MAX):
        for record in records:
            return PartitionLog(extent, record.appended_ms / 1000)
    if not reader.has_read_all([first]):
        raise KafkaUnavailableError("the first record of a partition was not read in time")
    return PartitionLog(extent, math.inf)


@dataclass(frozen=True, slots=True)
class LogRead:
    """The tally of a job's records, and whether all of them were read."""

    tally: LogTally
    has_first_record: bool  # the log goes back to before the job
    was_in_time: bool
    offset_range: OffsetRange
    seconds: float

    @property
    def is_complete(self) -> bool:
        """Whether every record of the job up to the end of the log was tallied."""
        return self.has_first_record and self.was_in_time


def committed_offset(settings: KafkaSettings, job_id: UUID) -> int:
    """Return the offset that the writer has committed on the job's partition.

    Read it before the rows: they contain everything below it. Raises KafkaUnavailableError.
    """
    partition = job_partition(job_id, RESULTS.partition_count)
    with closing(OffsetRangeReader(settings, RESULTS, client_id=_CLIENT, group=GROUP)) as reader:
        return reader.committed_offsets([partition]).get(partition, 0)


def tally_log(
    settings: KafkaSettings,
    job: tuple[UUID, datetime],
    rows: RowFingerprints,
    *,
    written_to: int,
    stop_at_s: float,
) -> LogRead:
    """Tally the records of a job, given by its id and creation, up to the current end of the log.

    Reads until `stop_at_s` of the monotonic clock. Raises KafkaUnavailableError, SchemaTooNewError.
    """
    started_s = time.monotonic()
    job_id, created_at = job
    tally = LogTally(rows, ItemFingerprints(len(rows.known)))
    with closing(OffsetRangeReader(settings, RESULTS, client_id=_CLIENT)) as reader:
        log = partition_log(reader, job_partition(job_id, RESULTS.partition_count))
        created_s = created_at.timestamp()
        has_first_record = log.covers(created_s, rows.first_row_s)
        since_ms = int((created_s - CLOCKS_DIFFER_S_MAX) * 1000)
        offsets = reader.range_since(log.offset_range.partition, max(0, since_ms))
        for records in reader.read([offsets], stop_at_s):
            for record in records:
                if record.key == job_id.bytes:
                    _add_record(tally, record, is_late=record.offset >= written_to)
        tally.finish()
        was_in_time = reader.has_read_all([offsets])
    return LogRead(tally, has_first_record, was_in_time, offsets, time.monotonic() - started_s)


def _add_record(tally: LogTally, received: ReceivedRecord, *, is_late: bool) -> None:
    try:
        record = read_record(received)
    except RecordUnreadableError:
        tally.counts.unreadable += 1
        return
    tally.add_record(record, is_late=is_late)
