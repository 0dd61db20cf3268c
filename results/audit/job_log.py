"""The records of one job on the `results` topic, outside any group and in bounded time."""

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from core.errors import RecordUnreadableError
from results.audit.item_fingerprints import ItemFingerprints, RowFingerprints
from results.audit.log_extent import CLOCKS_DIFFER_S_MAX, partition_log
from results.audit.log_tally import LogTally
from results.writer.record_reader import read_record
from results.writer.writer import GROUP
from topics.records.catalogue import RESULTS
from topics.records.partitioner import job_partition
from topics.records.received import Received
from topics.settings import KafkaSettings
from topics.tail_readers.offset_ranges import Stretch, StretchReader

_CLIENT: Final = "millrace-audit"


@dataclass(frozen=True, slots=True)
class LogRead:
    """What was read of the log, and whether that was all of a job."""

    tally: LogTally
    holds_first: bool  # the log goes back to before the job
    was_in_time: bool
    offset_range: Stretch
    seconds: float

    @property
    def is_complete(self) -> bool:
        """Whether every record of the job up to the end was judged."""
        return self.holds_first and self.was_in_time


def committed_offset(settings: KafkaSettings, job_id: UUID) -> int:
    """Return the offset that the writer has committed on the job's partition.

    Ask before rows are read: they hold everything below it. Raises LogUnavailableError.
    """
    reader = StretchReader(settings, RESULTS, client_id=_CLIENT, group=GROUP)
    try:
        partition = job_partition(job_id, RESULTS.partition_count)
        return reader.committed([partition]).get(partition, 0)
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
    """Judge the records of a job, given by its id and creation, up to the present end.

    Reads until `stop_at_s` of the monotonic clock. Raises LogUnavailableError, SchemaTooNewError.
    """
    started_s = time.monotonic()
    job_id, created_at = job
    judge = LogTally(rows, ItemFingerprints(len(rows.known)))
    reader = StretchReader(settings, RESULTS, client_id=_CLIENT)
    try:
        log = partition_log(reader, job_partition(job_id, RESULTS.partition_count))
        created_s = created_at.timestamp()
        holds_first = log.covers(created_s, rows.first_row_s)
        since_ms = int((created_s - CLOCKS_DIFFER_S_MAX) * 1000)
        stretch = reader.since(log.offset_range.partition, max(0, since_ms))
        for records in reader.read([stretch], stop_at_s):
            for record in records:
                if record.key == job_id.bytes:
                    _take(judge, record, is_late=record.offset >= written_to)
        judge.finish()
        was_in_time = reader.is_through([stretch])
    finally:
        reader.close()
    return LogRead(judge, holds_first, was_in_time, stretch, time.monotonic() - started_s)


def _take(judge: LogTally, received: Received, *, is_late: bool) -> None:
    try:
        record = read_record(received)
    except RecordUnreadableError:
        judge.counts.unreadable += 1
        return
    judge.add_record(record, is_late=is_late)
