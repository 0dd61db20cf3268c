"""Decodes chunks.

The items of an unreadable chunk fail, as far as its headers name them, and a copy of the record
goes to the dead-letter topic.
"""

import logging
from math import isfinite

from core.errors import RecordUnreadableError
from core.limits import ATTEMPT_MAX, NUMBER_MAX
from core.outcomes import Outcome
from core.tenant_claims import PriorityClass
from topics.clients.dead_letter_sender import DeadLetterSender
from topics.clients.producer import OnDelivery, RecordSender
from topics.records.catalogue import RESULTS
from topics.records.codec import NamedItems, decode, encode, job_headers, kind_headers, named_items
from topics.records.partitioner import job_partition
from topics.records.received_record import ReceivedRecord
from topics.records.records import Chunk, Item, ItemOutcome, JobRef, Outcomes

_LOG = logging.getLogger(__name__)
_ERROR = RecordUnreadableError


def read_chunk(record: ReceivedRecord) -> Chunk:
    """Return the chunk in `record`. Raises RecordUnreadableError, SchemaTooNewError.

    A chunk with numbers out of range is unreadable too: computing with them would crash this
    process, and every process that reads the record after it.
    """
    chunk = decode(Chunk, record.value, record.headers)
    job = chunk.job
    begin_by_s = 0.0 if job.call is None else job.call.begin_by_s
    if not chunk.items:
        raise RecordUnreadableError("the chunk is empty")
    if not (
        0 <= job.day <= NUMBER_MAX
        and isfinite(job.deadline_s)
        and isfinite(begin_by_s)
        and 0 <= (chunk.position or 0) <= NUMBER_MAX
        and _has_valid_claim(job)
        and all(map(_is_in_range, chunk.items))
    ):
        raise RecordUnreadableError("the chunk holds numbers out of range")
    return chunk


def send_unreadable(
    producer: RecordSender,
    letters: DeadLetterSender,
    record: ReceivedRecord,
    on_delivery: OnDelivery,
) -> int:
    """Fail the record's items and keep a copy; return how many deliveries will be reported.

    `letters` may send the copy later. Items fail only if the headers name no more than one chunk
    can hold; re-emission finds the others (delivery rule 7).
    """
    where = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    _LOG.error("unreadable record", extra=where)
    letters.send(record, code=_ERROR.code, on_delivery=on_delivery)
    try:
        named = named_items(record.headers)
    except RecordUnreadableError:
        _LOG.error("its headers name no items", extra=where)
        return 1
    outcomes = failed_outcomes(named, dict(record.headers))
    producer.send(
        RESULTS.name,
        encode(outcomes),
        partition=job_partition(named.job_id, RESULTS.partition_count),
        key=named.job_id.bytes,
        headers=[*kind_headers(Outcomes), *job_headers(outcomes.job)],
        on_delivery=on_delivery,
    )
    return 2


def failed_outcomes(named: NamedItems, headers: dict[str, bytes]) -> Outcomes:
    """Return a failure for every item that the headers name; fields without a header are empty.

    Tools that copy records may write null headers.
    """
    model, _, version = (headers.get("model") or b"").decode(errors="replace").partition("@")
    try:
        attempt = int(headers.get("attempt") or b"1")
    except ValueError:
        attempt = 1
    job = JobRef(
        job_id=named.job_id,
        day=named.day,
        tenant_id=named.tenant_id,
        model=model,
        model_version=version,
        pool="",
        endpoint="",
        input_key="",
        deadline_s=0.0,
    )
    items = [
        ItemOutcome(
            index=index,
            custom_id=None,
            outcome=Outcome.FAILED,
            status_code=0,
            body=b"",
            error_code=_ERROR.code,
            error_message=_ERROR.__doc__,
            attempt=attempt if 1 <= attempt <= ATTEMPT_MAX else 1,
        )
        for index in named.indexes
    ]
    return Outcomes(job, items)


def _has_valid_claim(job: JobRef) -> bool:
    """Whether shares can be computed from what the tenant is due: those of all depend on it."""
    return (
        1 <= job.weight <= NUMBER_MAX
        and 0 <= job.reserved <= 1  # false for NaN, too
        and 0 <= job.tenant_class < len(PriorityClass)
    )


def _is_in_range(item: Item) -> bool:
    return (
        0 <= item.index <= NUMBER_MAX
        and 1 <= item.attempt <= ATTEMPT_MAX
        and 0 <= item.output_token_count <= item.token_count
    )
