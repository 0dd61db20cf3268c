"""What a rebuild says of a job."""

from enum import StrEnum


class RebuildOutcome(StrEnum):
    """What became of a job."""

    SAME = "same"
    DIFFERS = "differs"
    SWAPPED = "swapped"
    NOT_ENDED = "not_ended"  # the writer owns its rows
    LOG_BEGINS_LATER = "log_begins_later"  # its first record is not held any more
    LOG_INCOMPLETE = "log_incomplete"  # not every item has its end there
    OTHER_LIMIT = "other_limit"  # of attempts, than when the job ran
    GONE = "gone"  # it was deleted meanwhile
