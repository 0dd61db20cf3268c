"""Reads ranges of offsets of a topic without a consumer group, up to a fixed end."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from topics.clients.client_factory import new_client
from topics.clients.missing_topics import is_missing_topic_error
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import Topic
from topics.records.received_record import ReceivedRecord, received_records
from topics.settings import KafkaSettings

_COUNT_MAX: Final = 500
_REQUEST_S: Final = 5.0
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition; `end` is exclusive."""

    partition: int
    first: int
    end: int


class OffsetRangeReader:
    """Reads offset ranges of one topic, from one thread. Close it.

    Every method raises KafkaUnavailableError when the broker does not answer.
    """

    def __init__(
        self, settings: KafkaSettings, topic: Topic, *, client_id: str, group: str | None = None
    ) -> None:
        """Connect lazily. `group` is the one whose commits are read; it is never joined."""
        self._prefix = settings.topic_prefix
        self._name = self._prefix + topic.name
        self._next_offsets: dict[int, int] = {}
        self._consumer = new_client(
            Consumer,
            settings.client_options()
            | {
                "client.id": client_id,
                "group.id": self._prefix + (group or client_id),
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                "queued.max.messages.kbytes": 16 * 1024,
            },
        )

    def full_range(self, partition: int) -> OffsetRange:
        """Return the range of all records that a partition holds now."""
        place = TopicPartition(self._name, partition)
        try:
            low, high = self._consumer.get_watermark_offsets(place, timeout=_REQUEST_S)
        except KafkaException as error:
            raise KafkaUnavailableError(error.args[0].str()) from None
        return OffsetRange(partition, low, high)

    def range_since(self, partition: int, appended_ms: int) -> OffsetRange:
        """Return the range appended at or after a time of the broker's clock."""
        full = self.full_range(partition)
        requested = [TopicPartition(self._name, partition, appended_ms)]
        try:
            (found,) = self._consumer.offsets_for_times(requested, timeout=_REQUEST_S)
        except KafkaException as error:
            raise KafkaUnavailableError(error.args[0].str()) from None
        first = full.end if found.offset < 0 else found.offset
        return OffsetRange(partition, max(first, full.first), full.end)

    def committed_offsets(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the group's committed offsets; a partition without a commit is absent."""
        requested = [TopicPartition(self._name, number) for number in partitions]
        try:
            found = self._consumer.committed(requested, timeout=_REQUEST_S)
        except KafkaException as error:
            raise KafkaUnavailableError(error.args[0].str()) from None
        return {place.partition: place.offset for place in found if place.offset >= 0}

    def read(
        self, ranges: Sequence[OffsetRange], stop_at_s: float
    ) -> Iterator[list[ReceivedRecord]]:
        """Yield the records of `ranges` poll by poll, until `stop_at_s` of the monotonic clock.

        `has_read_all` reports afterwards whether every range was read to its end.
        """
        ends = {r.partition: r.end for r in ranges}
        self._next_offsets = {r.partition: r.first for r in ranges}
        self._consumer.assign([TopicPartition(self._name, r.partition, r.first) for r in ranges])
        while not self.has_read_all(ranges) and time.monotonic() < stop_at_s:
            first = self._consumer.consume(1, _POLL_S)
            messages = first + (self._consumer.consume(_COUNT_MAX, 0) if first else [])
            if any(map(is_missing_topic_error, messages)):
                raise KafkaUnavailableError("the topic does not exist any more")
            records = received_records(messages, self._prefix)
            self._record_ends(messages)
            for record in records:
                self._next_offsets[record.partition] = record.offset + 1
            yield [record for record in records if record.offset < ends[record.partition]]

    def has_read_all(self, ranges: Sequence[OffsetRange]) -> bool:
        """Whether every range was read to its end."""
        return all(self._next_offsets.get(r.partition, 0) >= r.end for r in ranges)

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()

    def _record_ends(self, messages: Sequence[Message]) -> None:
        for message in messages:
            error, offset, number = message.error(), message.offset(), message.partition()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                assert offset is not None
                assert number is not None
                self._next_offsets[number] = offset
