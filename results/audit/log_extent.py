"""Finds which records a partition of `results` still has, and whether it has a job's first record.

Only a log that has all records of a job can show that its rows are wrong.
"""

import math
import time
from dataclasses import dataclass
from typing import Final

from topics.errors import KafkaUnavailableError
from topics.tail_readers.offset_ranges import OffsetRange, OffsetRangeReader

CLOCKS_DIFFER_S_MAX: Final = 600
"""Assumed bound on the difference between the clocks of Postgres and a broker."""

_ROW_EARLIER_S_MAX: Final = 10
"""How much earlier than the log a row may seem to be; topics take longer to be created again."""

_FIRST_S_MAX: Final = 10.0


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
