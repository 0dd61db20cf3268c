"""Finds the items that replicas are processing: those of batches not yet acknowledged."""

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Final
from uuid import UUID

from core.errors import RecordUnreadableError, SchemaTooNewError
from topics.records.catalogue import batches_topic
from topics.records.codec import decode
from topics.records.received_record import ReceivedRecord
from topics.records.records import Batch
from topics.settings import KafkaSettings
from topics.tail_readers.offset_ranges import OffsetRange, OffsetRangeReader

_CLIENT: Final = "millrace-item-status"
_RECORDS_MAX: Final = 64  # per partition; credits keep the number far below

DispatchedItems = dict[UUID, dict[int, str]]
"""By job, the indexes of items and the id of the replica that has each."""


def dispatched_items(
    settings: KafkaSettings, pool: str, job_class: str, *, timeout_s: float
) -> DispatchedItems:
    """Return the items of a pool that were dispatched and whose batch has not ended.

    Raises KafkaUnavailableError.
    """
    topic = batches_topic(pool, job_class)
    group = f"gpu-{pool}-{job_class}"
    found: DispatchedItems = {}
    with closing(OffsetRangeReader(settings, topic, client_id=_CLIENT, group=group)) as reader:
        numbers = reader.partition_numbers()
        committed = reader.committed_offsets(numbers)
        ranges = [_unacknowledged(reader.full_range(n), committed.get(n)) for n in numbers]
        unread = [offsets for offsets in ranges if offsets.first < offsets.end]
        for records in reader.read(unread, time.monotonic() + timeout_s) if unread else ():
            _add_items(found, records)
    return found


def _unacknowledged(extent: OffsetRange, committed: int | None) -> OffsetRange:
    first = extent.first if committed is None else max(committed, extent.first)
    return OffsetRange(extent.partition, max(first, extent.end - _RECORDS_MAX), extent.end)


def _add_items(found: DispatchedItems, records: Sequence[ReceivedRecord]) -> None:
    for record in records:
        try:
            batch = decode(Batch, record.value, record.headers)
        except (RecordUnreadableError, SchemaTooNewError):
            continue  # a record of a newer release must not fail the answer
        for part in batch.parts:
            items = found.setdefault(part.job.job_id, {})
            items.update((item.index, batch.replica_id) for item in part.items)
