"""Which items replicas have now: those of the batches that no replica has acknowledged yet."""

import time
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from core.errors import RecordUnreadableError, SchemaTooNewError
from topics.records.catalogue import batches_topic
from topics.records.codec import decode
from topics.records.received import Received
from topics.records.records import Batch
from topics.settings import KafkaSettings
from topics.tail_readers.offset_ranges import Stretch, StretchReader

_CLIENT: Final = "millrace-item-status"
_RECORDS_MAX: Final = 64  # of one partition; credits keep it far below

DispatchedItems = dict[UUID, dict[int, str]]
"""By job, the indexes of items and who has each."""


def dispatched_items(
    settings: KafkaSettings, pool: str, job_class: str, *, timeout_s: float
) -> DispatchedItems:
    """Return the items of a pool that were dispatched and whose batch has not ended.

    Raises LogUnavailableError.
    """
    topic = batches_topic(pool, job_class)
    group = f"gpu-{pool}-{job_class}"
    reader = StretchReader(settings, topic, client_id=_CLIENT, group=group)
    found: DispatchedItems = {}
    try:
        numbers = range(topic.partition_count)
        committed = reader.committed(numbers)
        stretches = [_open(reader.whole(n), committed.get(n)) for n in numbers]
        unread = [stretch for stretch in stretches if stretch.first < stretch.end]
        for records in reader.read(unread, time.monotonic() + timeout_s) if unread else ():
            _note(found, records)
    finally:
        reader.close()
    return found


def _open(whole: Stretch, committed: int | None) -> Stretch:
    first = whole.first if committed is None else max(committed, whole.first)
    return Stretch(whole.partition, max(first, whole.end - _RECORDS_MAX), whole.end)


def _note(found: DispatchedItems, records: Sequence[Received]) -> None:
    for record in records:
        try:
            batch = decode(Batch, record.value, record.headers)
        except (RecordUnreadableError, SchemaTooNewError):
            continue  # also of a newer release: what is derived may lack it, no answer may fail
        for part in batch.parts:
            items = found.setdefault(part.job.job_id, {})
            items.update((item.index, batch.replica_id) for item in part.items)
