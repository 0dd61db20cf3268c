"""A batch as the consumer delivers it to a class worker."""

from dataclasses import dataclass

from topics.records.received_record import ReceivedRecord
from topics.records.records import Batch


@dataclass(frozen=True, slots=True)
class DeliveredBatch:
    """A batch, and the record and generation with which it is reported as finished."""

    record: ReceivedRecord
    batch: Batch
    generation: int  # of the partition assignment that delivered it
    is_redelivered: bool = False  # older than the assignment: a previous owner may have run it
