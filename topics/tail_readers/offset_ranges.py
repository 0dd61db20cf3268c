"""Reads ranges of offsets of a topic without a consumer group, up to a fixed end."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from topics.errors import KafkaUnavailableError
from topics.records.received_record import ReceivedRecord
from topics.tail_readers.topic_tail_reader import TopicTailReader

_Answer = TypeVar("_Answer")

_REQUEST_S: Final = 5.0
_POLL_S: Final = 0.2
_NO_LEADER: Final = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001  the client's own code
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition; `end` is exclusive."""

    partition: int
    first: int
    end: int


class OffsetRangeReader(TopicTailReader):
    """Reads offset ranges of one topic, from one thread. Close it.

    Every method raises KafkaUnavailableError when the broker does not answer.
    """

    fetch_wait_ms = 100
    queue_kbytes_max = 16 * 1024

    def partition_numbers(self) -> list[int]:
        """Return the partitions that the topic has now, in order."""
        try:
            listed = self._consumer.list_topics(self._name, timeout=_REQUEST_S)
        except KafkaException as error:
            raise KafkaUnavailableError(error.args[0].str()) from None
        return sorted(listed.topics[self._name].partitions)

    def full_range(self, partition: int) -> OffsetRange:
        """Return the range of all records that a partition holds now."""
        place = TopicPartition(self._name, partition)
        low, high = self._retried(
            lambda: self._consumer.get_watermark_offsets(place, timeout=_REQUEST_S)
        )
        return OffsetRange(partition, low, high)

    def range_since(self, partition: int, appended_ms: int) -> OffsetRange:
        """Return the range appended at or after a time of the broker's clock."""
        full = self.full_range(partition)
        requested = [TopicPartition(self._name, partition, appended_ms)]
        (found,) = self._retried(
            lambda: _checked(self._consumer.offsets_for_times(requested, timeout=_REQUEST_S))
        )
        first = full.end if found.offset < 0 else found.offset
        return OffsetRange(partition, max(first, full.first), full.end)

    def committed_offsets(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the group's committed offsets; a partition without a commit is absent."""
        requested = [TopicPartition(self._name, number) for number in partitions]
        found = self._retried(
            lambda: _checked(self._consumer.committed(requested, timeout=_REQUEST_S))
        )
        return {place.partition: place.offset for place in found if place.offset >= 0}

    def read(
        self, ranges: Sequence[OffsetRange], stop_at_s: float
    ) -> Iterator[list[ReceivedRecord]]:
        """Yield the records of `ranges` poll by poll, until `stop_at_s` of the monotonic clock.

        `has_read_all` reports afterwards whether every range was read to its end.
        """
        ends = {r.partition: r.end for r in ranges}
        self._next_offsets = {r.partition: r.first for r in ranges}
        self._assign([TopicPartition(self._name, r.partition, r.first) for r in ranges])
        while not self.has_read(ends) and time.monotonic() < stop_at_s:
            records = self.poll(_POLL_S)
            yield [record for record in records if record.offset < ends[record.partition]]

    def has_read_all(self, ranges: Sequence[OffsetRange]) -> bool:
        """Whether every range was read to its end."""
        return self.has_read({r.partition: r.end for r in ranges})

    def _retried(self, request: Callable[[], _Answer]) -> _Answer:
        """Send a request again while the topic has no leader, as for a moment after its creation.

        Raises KafkaUnavailableError for other failures, and when none has a leader after
        `_REQUEST_S`.
        """
        deadline_s = time.monotonic() + _REQUEST_S
        while True:
            try:
                return request()
            except KafkaException as error:
                if error.args[0].code() not in _NO_LEADER or time.monotonic() > deadline_s:
                    raise KafkaUnavailableError(error.args[0].str()) from None
            self._refresh_leaders()


def _checked(places: list[TopicPartition]) -> list[TopicPartition]:
    """Return the answer for each partition. Raises KafkaException for one that has an error."""
    for place in places:
        if place.error is not None:
            raise KafkaException(place.error)
    return places
