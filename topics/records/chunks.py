"""Splits items into chunks and sends chunks to `requests.*`.

Intake emits every item once; batchers and GPU consumers emit requeued items again.
"""

from collections.abc import Iterable, Iterator

from core.limits import CHUNK_BYTES_MAX, CHUNK_ITEMS_MAX
from topics.clients.producer import OnDelivery, RecordSender
from topics.records.catalogue import REQUESTS
from topics.records.codec import chunk_headers, encode
from topics.records.partitioner import request_partition
from topics.records.records import Chunk, Item


def split_into_chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Split items into chunks of consecutive indexes, within the limits of items and bytes.

    Indexes must be consecutive because a chunk's headers name a range: when the value cannot be
    read, every index in the range fails. An item by reference counts with the bytes of its line, so
    it gets a chunk of its own.
    """
    chunk: list[Item] = []
    bytes_left = CHUNK_BYTES_MAX
    for item in items:
        size = item.length or len(item.body)
        if chunk and (
            size > bytes_left or len(chunk) == CHUNK_ITEMS_MAX or item.index != chunk[-1].index + 1
        ):
            yield chunk
            chunk, bytes_left = [], CHUNK_BYTES_MAX
        chunk.append(item)
        bytes_left -= size
    if chunk:
        yield chunk


def send_chunk(
    sender: RecordSender, chunk: Chunk, job_class: str, on_delivery: OnDelivery | None = None
) -> None:
    """Send a chunk to the request topic of its class. Raises DeliveryError.

    The partition follows from the first index, so a chunk that is emitted again goes to the same
    partition, and indexes grow along each partition.
    """
    job, topic = chunk.job, REQUESTS[job_class]
    sequence = job.job_id.int + chunk.items[0].index // CHUNK_ITEMS_MAX
    sender.send(
        topic.name,
        encode(chunk),
        partition=request_partition(job.model, job.tenant_id, sequence, topic.partition_count),
        key=b"%s\0%s" % (job.model.encode(), job.tenant_id.bytes),
        headers=chunk_headers(chunk, job_class),
        on_delivery=on_delivery,
    )
