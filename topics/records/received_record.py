"""A record as a consumer read it, with or without a group."""

from typing import Final

import msgspec
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


class ReceivedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record that was read; `appended_ms` is the broker's time of its append.

    A struct, because a frozen dataclass takes 2 µs to create, and a batcher reads 5,000 a second.
    """

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
        if (error := message.error()) is not None:
            if error.code() in _REFUSED:
                raise KafkaAuthorizationError(error.str())
            if error.fatal():
                raise KafkaUnavailableError(error.str())
            continue
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None  # only error events lack these
        assert partition is not None
        assert offset is not None
        records.append(
            ReceivedRecord(
                topic.removeprefix(prefix),
                partition,
                offset,
                message.key(),
                message.headers() or [],
                message.value(),
                message.timestamp()[1],
            )
        )
    return records
