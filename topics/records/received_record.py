"""A record as it was read, whoever reads it: a member of a group, or one that follows alone."""

from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, Message

from topics.errors import KafkaAuthorizationError, KafkaUnavailableError

_REFUSED: Final = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)
"""A broker's refusals: a client asks again for ever, and gets no record meanwhile."""


@dataclass(frozen=True, slots=True)
class ReceivedRecord:
    """A record as it was read; `appended_ms` is the broker's time of appending it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    headers: list[tuple[str, bytes]]
    value: bytes | None
    appended_ms: int


def received_records(messages: list[Message], prefix: str) -> list[ReceivedRecord]:
    """Return what a client consumed; temporary errors are left to the client's own retries.

    Raises KafkaUnavailableError for errors that only a new client could mend, KafkaAuthorizationError.
    """
    records = []
    for message in messages:
        error = message.error()
        if error is not None:
            if error.code() in _REFUSED:
                raise KafkaAuthorizationError(error.str())
            if error.fatal():
                raise KafkaUnavailableError(error.str())
            continue
        records.append(
            ReceivedRecord(
                topic=(message.topic() or "").removeprefix(prefix),
                partition=_number(message.partition()),
                offset=_number(message.offset()),
                key=message.key(),
                headers=message.headers() or [],
                value=message.value(),
                appended_ms=message.timestamp()[1],
            )
        )
    return records


def _number(value: int | None) -> int:
    assert value is not None  # only error events lack a place
    return value
