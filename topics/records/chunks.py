"""Splits items into chunks and sends chunks to `requests.*`.

Intake emits every item once; batchers and GPU consumers emit requeued items again.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from core.limits import CHUNK_BYTES_MAX, CHUNK_ITEMS_MAX
from topics.clients.producer import OnDelivery, PartitionSender, RecordSender
from topics.records.catalogue import REQUESTS
from topics.records.codec import Headers, chunk_headers, encode
from topics.records.partitioner import request_partition, shuffle_shard
from topics.records.received_record import ReceivedRecord
from topics.records.records import Chunk, Item, JobRef

REQUEUED_HEADER: Final = ("requeued", b"1")
"""The header of a chunk that was read before, so that its items are no new arrivals."""


def is_requeued(record: ReceivedRecord) -> bool:
    """Return whether a record of `requests.*` is a requeued chunk. Older releases do not say so.

    Its header is the last one: to look at all of them would take longer for each chunk.
    """
    headers = record.headers
    return bool(headers) and headers[-1] == REQUEUED_HEADER


def split_into_chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Split items into chunks within the limits of items and bytes, in the order that they have.

    An item by reference counts with the bytes of its line, so it gets a chunk of its own.
    """
    chunk: list[Item] = []
    bytes_left = CHUNK_BYTES_MAX
    for item in items:
        size = item.length or len(item.body)
        if chunk and (size > bytes_left or len(chunk) == CHUNK_ITEMS_MAX):
            yield chunk
            chunk, bytes_left = [], CHUNK_BYTES_MAX
        chunk.append(item)
        bytes_left -= size
    if chunk:
        yield chunk


def item_positions(chunk: Chunk) -> list[int | None]:
    """Return the position of each item in the job's order; None if it is the index.

    Of a part of a batch that was merged from several chunks those after the first may be too low.
    """
    if chunk.position is None:
        return [None] * len(chunk.items)
    return [*range(chunk.position, chunk.position + len(chunk.items))]


def send_chunk(
    sender: RecordSender,
    chunk: Chunk,
    job_class: str,
    on_delivery: OnDelivery | None = None,
    *,
    partition: int | None = None,
) -> None:
    """Send a chunk to the request topic of its class, to its own partition unless one is given.

    Raises DeliveryError.
    """
    if partition is None:
        partition = chunk_partition(chunk, job_class)
    _send(sender, chunk, job_class, partition, on_delivery)


def requeue_chunk(
    sender: PartitionSender, chunk: Chunk, job_class: str, on_delivery: OnDelivery
) -> None:
    """Send a chunk that was read before to its partition, or around it while it is unavailable.

    Requeued chunks are in no order, so the other partition of the shard does as well.
    """
    topic = REQUESTS[job_class].name
    own, *others = partitions_own_first(chunk, job_class)
    available = (n for n in (own, *others) if not sender.is_unavailable(topic, n))
    partition = next(available, own)
    headers = [*chunk_headers(chunk, job_class), REQUEUED_HEADER]
    _send(sender, chunk, job_class, partition, on_delivery, headers)


def partitions_own_first(chunk: Chunk, job_class: str) -> list[int]:
    """Return the partitions of the chunk's shard, that of the chunk itself first."""
    job, own = chunk.job, chunk_partition(chunk, job_class)
    shard = shuffle_shard(job.pool, job.tenant_id, REQUESTS[job_class].partition_count)
    return sorted(shard, key=lambda number: number != own)


def chunk_partition(chunk: Chunk, job_class: str) -> int:
    """Return the partition of a chunk.

    It follows from the position of its first item in the job's order, so positions grow along each
    partition, and an expansion after a crash sends its chunks to the same partitions.
    """
    job = chunk.job
    position = chunk.items[0].index if chunk.position is None else chunk.position
    sequence = job.job_id.int + position // CHUNK_ITEMS_MAX
    count = REQUESTS[job_class].partition_count
    return request_partition(job.pool, job.tenant_id, sequence, count)


def job_has_space(sender: PartitionSender, job: JobRef, job_class: str) -> bool:
    """Return whether all partitions that the job's chunks go to have space."""
    topic = REQUESTS[job_class]
    shard = shuffle_shard(job.pool, job.tenant_id, topic.partition_count)
    return all(sender.has_space(topic.name, number) for number in shard)


def _send(
    sender: RecordSender,
    chunk: Chunk,
    job_class: str,
    partition: int,
    on_delivery: OnDelivery | None,
    headers: Headers | None = None,
) -> None:
    job = chunk.job
    sender.send(
        REQUESTS[job_class].name,
        encode(chunk),
        partition=partition,
        key=b"%s\0%s" % (job.pool.encode(), job.tenant_id.bytes),
        headers=headers or chunk_headers(chunk, job_class),
        on_delivery=on_delivery,
    )
