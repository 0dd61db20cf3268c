"""A plain reader of a small topic, outside any group: from its beginning, then as it grows."""

import time
from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from topics.clients.client_factory import new_client
from topics.clients.missing_topics import is_missing_topic_error
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import Topic
from topics.records.received_record import ReceivedRecord, received_records
from topics.settings import KafkaSettings

_COUNT_MAX = 500
_ASK_S = 2.0
_ASK_AGAIN_S = 0.05


class TopicTailReader:
    """Reads partitions of one topic; used for control, capacity, demand, callers and replies."""

    def __init__(
        self,
        settings: KafkaSettings,
        topic: Topic,
        *,
        client_id: str,
        partitions: Sequence[int] | None = None,
        reset_to_earliest: bool = True,
    ) -> None:
        """Start at the oldest record of each partition, unless `seek_to_end` comes first.

        `partitions` are all of the topic when None. `reset_to_earliest` says where to go on when the log
        has lost the place of this reader: at the oldest record again, or else at the newest.
        """
        self._prefix = settings.topic_prefix
        name = self._prefix + topic.name
        numbers = range(topic.partition_count) if partitions is None else partitions
        self._places = [TopicPartition(name, number, 0) for number in numbers]
        self._consumer = new_client(
            Consumer,
            settings.client_options()
            | {
                "client.id": client_id,
                "group.id": f"{self._prefix}{client_id}",  # required by the client, never joined
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest" if reset_to_earliest else "latest",
                "fetch.wait.max.ms": 500,
                "queued.max.messages.kbytes": 8 * 1024,
            },
        )
        self._is_reading = self._is_missing = False
        self._reached: dict[int, int] = {}  # partition to the end that was read last

    def seek_to_end(self, timeout_s: float) -> None:
        """Forget the past: read only what is appended from now on. Raises KafkaUnavailableError."""
        ends = self._reached = self.end_offsets(timeout_s)
        self._read_from(
            [TopicPartition(p.topic, p.partition, ends[p.partition]) for p in self._places]
        )

    def read_to_end(self, timeout_s: float) -> list[ReceivedRecord]:
        """Return every record up to the present end. Raises KafkaUnavailableError when time is up."""
        return [record for piece in self.pieces_to_end(timeout_s) for record in piece]

    def pieces_to_end(self, timeout_s: float) -> Iterator[list[ReceivedRecord]]:
        """Yield the same in pieces, for a topic that is too long to hold in memory."""
        deadline = time.monotonic() + timeout_s
        ends = self.end_offsets(
            timeout_s
        )  # before reading begins: it would wait behind a long poll
        while not self.has_read(ends):
            if time.monotonic() > deadline:
                raise KafkaUnavailableError("the end of a topic was not reached in time")
            yield self.poll(0.1)

    def poll(self, timeout_s: float) -> list[ReceivedRecord]:
        """Return what has arrived, waiting at most `timeout_s`. Raises KafkaUnavailableError."""
        if not self._is_reading:
            self._read_from(self._places)
        first = self._consumer.consume(1, timeout_s)
        more = self._consumer.consume(_COUNT_MAX, 0) if first else []
        messages = first + more
        self._is_missing = self._is_missing or any(map(is_missing_topic_error, messages))
        self._note_ends(messages)
        records = received_records(messages, self._prefix)
        if self._is_missing and not records:  # those that came with the word are read already
            self._is_missing = False
            raise KafkaUnavailableError("the topic is gone")
        return records

    def has_read(self, ends: Mapping[int, int]) -> bool:
        """Whether everything below these offsets of partitions was returned, or skipped."""
        return all(self._reached.get(number, 0) >= end for number, end in ends.items())

    def end_offsets(self, timeout_s: float) -> dict[int, int]:
        """Return the present end of each partition. Raises KafkaUnavailableError.

        Asks until the leaders answer: for a moment after a topic's creation they refuse. Who was
        stopped while it asked asks once more: then not the log was away.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            is_last = time.monotonic() > deadline
            try:
                return {
                    place.partition: self._consumer.get_watermark_offsets(place, timeout=_ASK_S)[1]
                    for place in self._places
                }
            except KafkaException as error:
                if is_last:
                    raise KafkaUnavailableError(error.args[0].str()) from None
                time.sleep(_ASK_AGAIN_S)

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()

    def _read_from(self, places: list[TopicPartition]) -> None:
        self._consumer.assign(places)
        self._is_reading = True

    def _note_ends(self, messages: list[Message]) -> None:
        """The client tells of an end only after another long poll; the last record tells it too."""
        for message in messages:
            error, offset, number = message.error(), message.offset(), message.partition()
            is_end = error is not None and error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001
            if error is None or is_end:
                assert offset is not None
                assert number is not None
                self._reached[number] = offset if is_end else offset + 1
