"""Records of `results` to entries; what cannot be read goes to the dead letters, as it was."""

import logging
from typing import Final

from core.errors import RecordUnreadableError
from core.limits import RECORD_BYTES_MAX
from results.groups import Entry
from results.metrics import DEAD_LETTERS as DEAD_LETTER_COUNT
from topics.catalogue import DEAD_LETTERS
from topics.codec import decode_value, encode, kind_headers, kind_of
from topics.consumer import Received
from topics.producer import LogProducer
from topics.records import KINDS, Close, DeadLetter, Outcomes

LOG = logging.getLogger(__name__)

_COPIED_BYTES_MAX: Final = RECORD_BYTES_MAX - 64 * 1024
"""Of a record that is as large as records may be: its copy has the place around it."""


def read_entry(received: Received, producer: LogProducer) -> Entry:
    """Return what was read. Raises SchemaTooNewError: an older release must not judge it."""
    record: Outcomes | Close | None
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


def read_record(received: Received) -> Outcomes | Close:
    """Return the record. Raises RecordUnreadableError, SchemaTooNewError."""
    kind = kind_of(received.headers)
    if kind == KINDS[Outcomes]:
        return decode_value(Outcomes, received.value)
    if kind == KINDS[Close]:
        return decode_value(Close, received.value)
    raise RecordUnreadableError(f"{kind} does not belong on this topic")


def _send_dead_letter(
    received: Received, error: RecordUnreadableError, producer: LogProducer
) -> None:
    place = (received.topic, received.partition, received.offset)
    LOG.error("record unreadable", extra={"place": place, "reason": str(error)})
    letter = DeadLetter(
        *place,
        code=error.code,
        key=received.key,
        headers=received.headers,
        value=(received.value or b"")[:_COPIED_BYTES_MAX],
    )
    producer.send(
        DEAD_LETTERS.name,
        encode(letter),
        partition=received.partition % DEAD_LETTERS.partition_count,
        headers=kind_headers(DeadLetter),
    )
    DEAD_LETTER_COUNT.inc()
