"""A copy of a record that nobody can read, with the place where it lay."""

from typing import Final

from core.limits import RECORD_BYTES_MAX
from topics.clients.producer import OnDelivery, RecordSender
from topics.records.catalogue import DEAD_LETTERS
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import DeadLetter

_VALUE_BYTES_MAX: Final = RECORD_BYTES_MAX - 64 * 1024
"""Of a record that is as large as records may be: its copy has the place around it."""

_KEY_BYTES_MAX: Final = 1024
_HEADER_BYTES_MAX: Final = 32 * 1024


def send_dead_letter(
    sender: RecordSender,
    received: ReceivedRecord,
    *,
    code: str,
    on_delivery: OnDelivery | None = None,
) -> None:
    """Keep what fits of a record, whose reading failed with `code`. Raises DeliveryError.

    The copy is never too large to send: its reader would crash at the same record for ever.
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
