"""A record that cannot be read: its items fail, by its headers alone, and a copy is kept."""

import logging

from core.errors import RecordUnreadableError
from core.limits import CHUNK_ITEMS_MAX
from core.outcomes import Outcome
from topics.catalogue import RESULTS
from topics.codec import encode, kind_headers
from topics.dead_letters import send_dead_letter
from topics.headers import ItemRange, item_range, job_headers
from topics.partitioner import job_partition
from topics.producer import LogProducer, OnDelivery
from topics.received import Received
from topics.records import ItemOutcome, JobRef, Outcomes

_LOG = logging.getLogger(__name__)
_ERROR = RecordUnreadableError


def send_unreadable(producer: LogProducer, record: Received, on_delivery: OnDelivery) -> int:
    """Fail the record's items and keep a copy; return how many deliveries will be reported.

    Items are failed only where the headers name a range that one chunk can fill. A wider range has
    gaps, whose items may run elsewhere: what is lost there is found by repair (delivery, rule 7).
    """
    where = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    _LOG.error("unreadable record", extra=where)
    send_dead_letter(producer, record, code=_ERROR.code, on_delivery=on_delivery)
    try:
        named = item_range(record.headers)
    except RecordUnreadableError:
        _LOG.error("its headers name no items", extra=where)
        return 1
    if not 0 <= named.last_index - named.first_index < CHUNK_ITEMS_MAX:
        _LOG.error("its headers name a range with gaps", extra=where)
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


def failed_outcomes(named: ItemRange, headers: dict[str, bytes]) -> Outcomes:
    """Return the failures of every item that the headers name; what they do not say is empty."""
    model, _, version = headers.get("model", b"").decode(errors="replace").partition("@")
    try:
        attempt = int(headers.get("attempt", b"1"))
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
            attempt=attempt,
        )
        for index in range(named.first_index, named.last_index + 1)
    ]
    return Outcomes(job, items)
