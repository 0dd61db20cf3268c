"""Copies unreadable records to `dead_letters`, with their topic, partition and offset."""

from typing import Final

from core.limits import RECORD_BYTES_MAX
from topics.clients.producer import OnDelivery, RecordSender
from topics.records.catalogue import DEAD_LETTERS
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import DeadLetter

_VALUE_BYTES_MAX: Final = RECORD_BYTES_MAX - 64 * 1024
"""Longer values are truncated: the copy adds fields and must fit the record limit as well."""

_KEY_BYTES_MAX: Final = 1024
_HEADER_BYTES_MAX: Final = 32 * 1024


def send_dead_letter(
    sender: RecordSender,
    received: ReceivedRecord,
    *,
    code: str,
    on_delivery: OnDelivery | None = None,
) -> None:
    """Send a copy of a record whose decoding failed with `code`. Raises DeliveryError.

    Key, headers and value are truncated so that the copy can always be sent. Otherwise the reader
    would fail at the same record for ever.
    """
    headers = [(name, value or b"") for name, value in received.headers]  # one may be null
    header_bytes = sum(len(name) + len(value) for name, value in headers)
    letter = DeadLetter(
        topic=received.topic,
        partition=received.partition,
        offset=received.offset,
        code=code,
        key=received.key and received.key[:_KEY_BYTES_MAX],
        headers=headers if header_bytes <= _HEADER_BYTES_MAX else [],
        value=(received.value or b"")[:_VALUE_BYTES_MAX],
    )
    sender.send(
        DEAD_LETTERS.name,
        encode(letter),
        partition=received.partition % DEAD_LETTERS.partition_count,
        headers=kind_headers(DeadLetter),
        on_delivery=on_delivery,
    )
