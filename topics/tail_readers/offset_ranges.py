"""A stretch of a topic, read outside any group: from known offsets to the end as it is now."""

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
_ASK_S: Final = 5.0
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition, `end` not among them."""

    partition: int
    first: int
    end: int


class OffsetRangeReader:
    """Reads stretches of one topic; one thread uses it. Close it.

    Every method raises KafkaUnavailableError when the broker does not answer.
    """

    def __init__(
        self, settings: KafkaSettings, topic: Topic, *, client_id: str, group: str | None = None
    ) -> None:
        """Connect to nothing yet. `group` is whose commits are asked for; it is never joined."""
        self._prefix = settings.topic_prefix
        self._name = self._prefix + topic.name
        self._reached: dict[int, int] = {}
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
        """Return all that the log holds of a partition now."""
        place = TopicPartition(self._name, partition)
        try:
            low, high = self._consumer.get_watermark_offsets(place, timeout=_ASK_S)
        except KafkaException as error:
            raise KafkaUnavailableError(error.args[0].str()) from None
        return OffsetRange(partition, low, high)

    def range_since(self, partition: int, appended_ms: int) -> OffsetRange:
        """Return what was appended to a partition from a moment of the broker's clock on."""
        stretch = self.full_range(partition)
        asked = [TopicPartition(self._name, partition, appended_ms)]
        try:
            (found,) = self._consumer.offsets_for_times(asked, timeout=_ASK_S)
        except KafkaException as error:
            raise KafkaUnavailableError(error.args[0].str()) from None
        first = stretch.end if found.offset < 0 else found.offset
        return OffsetRange(partition, max(first, stretch.first), stretch.end)

    def committed_offsets(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the group's next offsets; a partition without a commit is absent."""
        places = [TopicPartition(self._name, number) for number in partitions]
        try:
            found = self._consumer.committed(places, timeout=_ASK_S)
        except KafkaException as error:
            raise KafkaUnavailableError(error.args[0].str()) from None
        return {place.partition: place.offset for place in found if place.offset >= 0}

    def read(
        self, stretches: Sequence[OffsetRange], stop_at_s: float
    ) -> Iterator[list[ReceivedRecord]]:
        """Yield the records of `stretches` in pieces, until `stop_at_s` of the monotonic clock.

        `has_read_all` tells afterwards whether that was all.
        """
        ends = {stretch.partition: stretch.end for stretch in stretches}
        self._reached = {stretch.partition: stretch.first for stretch in stretches}
        self._consumer.assign([TopicPartition(self._name, s.partition, s.first) for s in stretches])
        while not self.has_read_all(stretches) and time.monotonic() < stop_at_s:
            first = self._consumer.consume(1, _POLL_S)
            messages = first + (self._consumer.consume(_COUNT_MAX, 0) if first else [])
            if any(map(is_missing_topic_error, messages)):
                raise KafkaUnavailableError("the topic is gone")
            records = received_records(messages, self._prefix)
            self._note_ends(messages)
            for record in records:
                self._reached[record.partition] = record.offset + 1
            yield [record for record in records if record.offset < ends[record.partition]]

    def has_read_all(self, stretches: Sequence[OffsetRange]) -> bool:
        """Whether every stretch was read to its end."""
        return all(self._reached.get(s.partition, 0) >= s.end for s in stretches)

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()

    def _note_ends(self, messages: Sequence[Message]) -> None:
        for message in messages:
            error, offset, number = message.error(), message.offset(), message.partition()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                assert offset is not None
                assert number is not None
                self._reached[number] = offset
