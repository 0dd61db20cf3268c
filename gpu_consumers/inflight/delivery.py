"""A batch as it was delivered to this replica."""

from dataclasses import dataclass

from topics.records.received_record import ReceivedRecord
from topics.records.records import Batch


@dataclass(frozen=True, slots=True)
class Delivery:
    """A batch, and what to hand back to `finished`."""

    record: ReceivedRecord
    batch: Batch
    generation: int  # of the assignment that brought it
    may_have_run: bool = False  # it was on its partition before this member owned that
