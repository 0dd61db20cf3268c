"""Outcomes of the rebuild of a job."""

from enum import StrEnum


class RebuildOutcome(StrEnum):
    """The outcome for one job, as the CLI shows it."""

    SAME = "same"
    DIFFERS = "differs"
    SWAPPED = "swapped"
    NOT_ENDED = "not_ended"  # the writer still writes its rows
    LOG_BEGINS_LATER = "log_begins_later"  # its first record was deleted
    LOG_INCOMPLETE = "log_incomplete"  # some item has no final outcome on the log
    OTHER_LIMIT = "other_limit"  # the job ran under another limit of attempts
    GONE = "gone"  # deleted during the rebuild
