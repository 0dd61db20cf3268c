"""Decodes records of `results`; unreadable ones go unchanged to the dead-letter topic."""

import logging

from core.errors import RecordUnreadableError
from results.metrics import DEAD_LETTERS
from results.writer.record_groups import Entry
from topics.clients.producer import RecordSender
from topics.records.codec import decode_value, kind_of
from topics.records.dead_letter_copy import send_dead_letter
from topics.records.received_record import ReceivedRecord
from topics.records.records import KINDS, CopiesDue, JobClose, Outcomes

LOG = logging.getLogger(__name__)


def read_entry(received: ReceivedRecord, producer: RecordSender) -> Entry:
    """Decode a record. Raises SchemaTooNewError: an older release must not skip the record."""
    record: Outcomes | JobClose | CopiesDue | None
    try:
        record = read_record(received)
    except RecordUnreadableError as error:
        record = None
        _send_dead_letter(received, error, producer)
    return Entry(
        partition=(received.topic, received.partition),
        next_offset=received.offset + 1,
        size_bytes=len(received.value or b""),
        record=record,
    )


def read_record(received: ReceivedRecord) -> Outcomes | JobClose | CopiesDue:
    """Decode the value. Raises RecordUnreadableError, SchemaTooNewError."""
    kind = kind_of(received.headers)
    if kind == KINDS[Outcomes]:
        outcomes = decode_value(Outcomes, received.value)
        if not outcomes.items:
            raise RecordUnreadableError("the record holds no outcome")
        return outcomes
    if kind == KINDS[JobClose]:
        return decode_value(JobClose, received.value)
    if kind == KINDS[CopiesDue]:
        return decode_value(CopiesDue, received.value)
    raise RecordUnreadableError(f"{kind} does not belong on this topic")


def _send_dead_letter(
    received: ReceivedRecord, error: RecordUnreadableError, producer: RecordSender
) -> None:
    place = (received.topic, received.partition, received.offset)
    LOG.error("record unreadable", extra={"place": place, "reason": str(error)})
    send_dead_letter(producer, received, code=error.code)
    DEAD_LETTERS.inc()
