"""Records of items that failed for good, for those who read the topic `dead_letters`."""

from uuid import UUID

from topics.records.records import Record


class FailedItemAttempt(Record, frozen=True):
    """One execution of an item that failed."""

    attempt: int
    status_code: int  # 0 when there was no answer
    code: str
    at_s: float  # seconds since the epoch, by the database's time


class DeadItem(Record, frozen=True):
    """An item that failed for good; its line and its answer are in the files of its job."""

    index: int
    custom_id: str | None
    attempts: list[FailedItemAttempt]  # in order; the last one is why it failed


class DeadItems(Record, frozen=True):
    """Items of one job that failed for good in one commit (`dead_letters`)."""

    job_id: UUID
    day: int
    tenant_id: UUID
    items: list[DeadItem]
