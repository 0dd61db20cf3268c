"""Reads the records of one job from the `results` topic, without a group and in bounded time."""

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from core.errors import RecordUnreadableError
from results.audit.item_fingerprints import ItemFingerprints, RowFingerprints
from results.audit.log_extent import CLOCKS_DIFFER_S_MAX, partition_log
from results.audit.log_tally import LogTally
from results.writer.record_groups import read_record
from results.writer.writer import GROUP
from topics.records.catalogue import RESULTS
from topics.records.partitioner import job_partition
from topics.records.received_record import ReceivedRecord
from topics.settings import KafkaSettings
from topics.tail_readers.offset_ranges import OffsetRange, OffsetRangeReader

_CLIENT: Final = "millrace-audit"


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
    reader = OffsetRangeReader(settings, RESULTS, client_id=_CLIENT, group=GROUP)
    try:
        partition = job_partition(job_id, RESULTS.partition_count)
        return reader.committed_offsets([partition]).get(partition, 0)
    finally:
        reader.close()


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
    reader = OffsetRangeReader(settings, RESULTS, client_id=_CLIENT)
    try:
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
    finally:
        reader.close()
    return LogRead(tally, has_first_record, was_in_time, offsets, time.monotonic() - started_s)


def _add_record(tally: LogTally, received: ReceivedRecord, *, is_late: bool) -> None:
    try:
        record = read_record(received)
    except RecordUnreadableError:
        tally.counts.unreadable += 1
        return
    tally.add_record(record, is_late=is_late)
