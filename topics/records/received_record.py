"""A record as a consumer read it, with or without a group."""

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
"""Denied access: the client retries for ever and returns no record."""


@dataclass(frozen=True, slots=True)
class ReceivedRecord:
    """A record that was read; `appended_ms` is the broker's time of its append."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    headers: list[tuple[str, bytes]]
    value: bytes | None
    appended_ms: int


def received_records(messages: list[Message], prefix: str) -> list[ReceivedRecord]:
    """Return the records of consumed messages; the client itself retries after temporary errors.

    Raises KafkaAuthorizationError, and KafkaUnavailableError for errors that need a new client.
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
    assert value is not None  # only error events lack it
    return value
