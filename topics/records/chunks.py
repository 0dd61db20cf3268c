"""Items cut into chunks, and a chunk on its way to `requests.*`: the same for whoever emits them.

An item travels from intake, and again when a batcher or a GPU consumer puts it back.
"""

from collections.abc import Iterable, Iterator

from core.limits import CHUNK_BYTES_MAX, CHUNK_ITEMS_MAX
from topics.clients.producer import OnDelivery, RecordSender
from topics.records.catalogue import REQUESTS
from topics.records.codec import encode
from topics.records.headers import chunk_headers
from topics.records.partitioner import request_partition
from topics.records.records import Chunk, Item


def split_into_chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Cut items into chunks within the limits, each of consecutive indexes.

    A chunk's headers name a range: an index inside it that is not in the chunk would be failed
    with it when its value cannot be read. An item that travels by reference counts as its line,
    so it has a chunk of its own.
    """
    chunk: list[Item] = []
    room = CHUNK_BYTES_MAX
    for item in items:
        size = item.length or len(item.body)
        if chunk and (
            size > room or len(chunk) == CHUNK_ITEMS_MAX or item.index != chunk[-1].index + 1
        ):
            yield chunk
            chunk, room = [], CHUNK_BYTES_MAX
        chunk.append(item)
        room -= size
    if chunk:
        yield chunk


def send_chunk(
    sender: RecordSender, chunk: Chunk, job_class: str, on_delivery: OnDelivery | None = None
) -> None:
    """Send a chunk to the requests of its class. Raises DeliveryError.

    Its partition follows from its first index, so what is emitted again lands where the first
    emission did, and indexes grow along each partition.
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
