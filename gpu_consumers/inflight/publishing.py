"""Outcomes and hand-backs of a batch to the log, in records that are never too large."""

from collections.abc import Iterable, Iterator

from topics.clients.producer import OnDelivery, RecordProducer
from topics.records.catalogue import RESULTS
from topics.records.chunks import send_chunk, split_into_chunks
from topics.records.codec import Headers, encode, kind_headers
from topics.records.headers import job_headers
from topics.records.partitioner import job_partition
from topics.records.records import Chunk, Item, ItemOutcome, JobRef, Outcomes

OUTCOMES_BYTES_MAX = 800_000
"""Answer bytes in one record: what follows the last answer still fits the broker's limit."""

_ITEM_OVERHEAD_BYTES = 64


def outcome_records(job: JobRef, outcomes: list[ItemOutcome]) -> Iterator[Outcomes]:
    """Split outcomes into records below the size limit, in the order given."""
    held: list[ItemOutcome] = []
    size = 0
    for outcome in outcomes:
        bytes_more = len(outcome.body) + _ITEM_OVERHEAD_BYTES + 4 * len(outcome.custom_id or "")
        if held and size + bytes_more > OUTCOMES_BYTES_MAX:
            yield Outcomes(job, held)
            held, size = [], 0
        held.append(outcome)
        size += bytes_more
    if held:
        yield Outcomes(job, held)


def send_outcomes(
    producer: RecordProducer, job: JobRef, outcomes: list[ItemOutcome], on_delivery: OnDelivery
) -> int:
    """Send outcomes of one job to its judge; return how many deliveries will be reported."""
    headers: Headers = [*kind_headers(Outcomes), *job_headers(job)]
    partition = job_partition(job.job_id, RESULTS.partition_count)
    count = 0
    for record in outcome_records(job, outcomes):
        producer.send(
            RESULTS.name,
            encode(record),
            partition=partition,
            key=job.job_id.bytes,
            headers=headers,
            on_delivery=on_delivery,
        )
        count += 1
    return count


def send_back(
    producer: RecordProducer,
    job: JobRef,
    items: Iterable[Item],
    job_class: str,
    on_delivery: OnDelivery,
) -> int:
    """Put unfinished items at the tail of their requests; return the deliveries to come.

    Their attempt is unchanged: the pool failed, not the item.
    """
    count = 0
    for chunk in split_into_chunks(items):
        send_chunk(producer, Chunk(job, chunk), job_class, on_delivery)
        count += 1
    return count
