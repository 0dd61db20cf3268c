"""What the log still holds of a partition of `results`, and whether a job is there from its first
record on: only then does it say more of the job than its rows.
"""

import math
import time
from dataclasses import dataclass
from typing import Final

from topics.errors import LogUnavailableError
from topics.tail_readers.offset_ranges import Stretch, StretchReader

CLOCKS_DIFFER_S_MAX: Final = 600
"""How far apart the clocks of Postgres and a broker may be before a job's begin is missed."""

_ROW_EARLIER_S_MAX: Final = 10
"""How much earlier than the log a row may seem to be. Less than it takes to create topics again."""

_FIRST_S_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """What the log holds of one partition of `results`."""

    offset_range: Stretch
    begins_s: float  # when its first record was appended; infinite: there is none

    def covers(self, created_s: float, first_row_s: float | None) -> bool:
        """Whether a job is there from its first record on.

        `created_s` is when it was created, `first_row_s` when its first row was written, None
        without rows. A log that begins at 0 may have lost nothing, or everything: topics that were
        created again begin there, too, but later than the rows of the jobs before.
        """
        if self.begins_s < created_s - CLOCKS_DIFFER_S_MAX:
            return True
        if self.offset_range.first > 0:
            return False
        return first_row_s is None or self.begins_s < first_row_s + _ROW_EARLIER_S_MAX


def partition_log(reader: StretchReader, number: int) -> PartitionLog:
    """Return what the log holds of a partition now. Raises LogUnavailableError."""
    whole = reader.whole(number)
    first = Stretch(number, whole.first, min(whole.first + 1, whole.end))
    for records in reader.read([first], time.monotonic() + _FIRST_S_MAX):
        for record in records:
            return PartitionLog(whole, record.appended_ms / 1000)
    if not reader.is_through([first]):
        raise LogUnavailableError("the first record of a partition was not read in time")
    return PartitionLog(whole, math.inf)
