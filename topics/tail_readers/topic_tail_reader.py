"""Reads a small topic without a consumer group: from its start or end, then as it grows."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from topics.clients.client_factory import new_client
from topics.clients.missing_topics import is_missing_topic_error
from topics.clients.offset_tracker import Partition
from topics.clients.unreadable_partitions import ReadStatistics, UnreadablePartitions
from topics.errors import KafkaUnavailableError
from topics.records.access import NO_GROUP
from topics.records.catalogue import Topic
from topics.records.received_record import ReceivedRecord, received_records
from topics.settings import KafkaSettings

_COUNT_MAX = 500
_REQUEST_S = 2.0  # a request waits behind the fetch in progress, see `fetch_wait_ms`
_RETRY_S = 0.05

BUSY_RECORDS_PER_S: Final = 1_000
"""Rate from which a reader with a poll interval polls half as often, and at twice the rate a
quarter as often. A poll costs as much as 30 records, most of it for waking threads."""

_BUSY_FACTOR_MAX: Final = 4


class TopicTailReader:
    """Reads partitions of one topic: control, capacity, demand, callers, replies, attempts.

    Every method that reads raises KafkaUnavailableError.
    """

    fetch_wait_ms: ClassVar[int] = 1000
    """Longest wait of a broker for records; the client reports a partition's end after it."""

    queue_kbytes_max: ClassVar[int] = 8 * 1024
    """Memory of fetched records."""

    def __init__(  # noqa: PLR0913  each one is an option
        self,
        settings: KafkaSettings,
        topic: Topic,
        *,
        client_id: str,
        group: str | None = None,
        partitions: Sequence[int] | None = None,
        reset_to_earliest: bool = True,
        poll_interval_s: float = 0.0,
    ) -> None:
        """Start at the oldest record of each partition unless `seek_to_end` is called first.

        `group` is the one whose commits are read; it is never joined. `partitions` None means all
        of them. `reset_to_earliest` is `auto.offset.reset`: where to continue once the broker has
        deleted the records at the position, at the oldest or newest. After a poll that returned
        records the next one waits for `poll_interval_s`, longer at `BUSY_RECORDS_PER_S`, and so
        do fetches: of a busy topic many records come at once, which costs a fraction of the
        CPU, and a single record is not delayed.
        """
        self._prefix, self._topic = settings.topic_prefix, topic.name
        self._name = self._prefix + topic.name
        numbers = range(topic.partition_count) if partitions is None else partitions
        self._partitions = [TopicPartition(self._name, number, 0) for number in numbers]
        self._poll_interval_s, self._polled_s, self._next_poll_s = poll_interval_s, 0.0, 0.0
        self._unreadable = UnreadablePartitions(settings.partition_timeout_s)
        statistics = ReadStatistics(
            self._unreadable,
            self._prefix,
            self.fetch_wait_ms / 1000,
            lambda: [(topic.name, number) for number in numbers] if self._is_assigned else (),
        )
        self._consumer = new_client(
            Consumer,
            settings.client_options()
            | statistics.client_options()
            | {
                "client.id": client_id,
                "group.id": self._prefix + (group or NO_GROUP),
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest" if reset_to_earliest else "latest",
                "fetch.wait.max.ms": self.fetch_wait_ms,
                "queued.max.messages.kbytes": self.queue_kbytes_max,
            }
            | (_paced_fetches(poll_interval_s) if poll_interval_s else {}),
        )
        self._is_assigned = self._is_missing = False
        self._next_offsets: dict[int, int] = {}  # by partition

    @property
    def unreadable_partitions(self) -> frozenset[Partition]:
        """The partitions that cannot be read, also while their end is sought; from any thread."""
        return self._unreadable.partitions

    def seek_to_end(self, timeout_s: float) -> None:
        """Skip every record that is on the topic now."""
        self.seek_before_end(0, timeout_s)

    def seek_before_end(self, count: int, timeout_s: float) -> None:
        """Skip every record but those at the last `count` offsets of each partition."""
        ends = self.end_offsets(timeout_s)
        offsets = self._next_offsets = {n: max(0, end - count) for n, end in ends.items()}
        self._assign([TopicPartition(self._name, n, offset) for n, offset in offsets.items()])

    def read_to_end(self, timeout_s: float) -> list[ReceivedRecord]:
        """Return every record up to the present end, within `timeout_s`."""
        return [record for records in self.iter_to_end(timeout_s) for record in records]

    def iter_to_end(self, timeout_s: float) -> Iterator[list[ReceivedRecord]]:
        """Yield the same records poll by poll, for a topic too long to hold in memory."""
        deadline = time.monotonic() + timeout_s
        ends = self.end_offsets(timeout_s)  # before reading: it would wait behind a long poll
        while not self.has_read(ends):
            if time.monotonic() > deadline:
                raise KafkaUnavailableError("the end of a topic was not reached in time")
            yield self.poll(0.1)

    def poll(self, timeout_s: float) -> list[ReceivedRecord]:
        """Return the records that have arrived, waiting at most `timeout_s` for the first."""
        if not self._is_assigned:
            self._assign(self._partitions)
        self._pace()
        messages = self._consume(timeout_s)
        if self._poll_interval_s and messages:
            self._plan_next_poll(len(messages))
        records = received_records(messages, self._prefix)
        errors = []
        if len(records) < len(messages):  # rarely: asking each message costs as much as a poll
            errors = [message for message in messages if message.error() is not None]
            self._is_missing = self._is_missing or any(map(is_missing_topic_error, errors))
        self._record_offsets(records, errors)
        if self._is_missing and not records:  # records that came with the error are returned first
            self._is_missing = False
            raise KafkaUnavailableError("the topic does not exist any more")
        return records

    def has_read(self, ends: Mapping[int, int]) -> bool:
        """Whether every record below these offsets, by partition, was returned or skipped."""
        return all(self._next_offsets.get(number, 0) >= end for number, end in ends.items())

    def end_offsets(self, timeout_s: float) -> dict[int, int]:
        """Return the present end offset of each partition.

        Retries until the leaders answer: they refuse for a moment after a topic's creation. The
        last try begins after `timeout_s`, so that a pause of this process is no failure of Kafka.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            is_last = time.monotonic() > deadline
            ends: dict[int, int] = {}
            try:
                for p in self._partitions:
                    ends[p.partition] = self._consumer.get_watermark_offsets(p, timeout=_REQUEST_S)[
                        1
                    ]
            except KafkaException as error:
                self._unreadable.observe([(self._topic, p.partition)])
                if is_last:
                    raise KafkaUnavailableError(error.args[0].str()) from None
                self._refresh_leaders()
            else:
                self._unreadable.observe(())
                return ends

    def _refresh_leaders(self) -> None:
        """Pause before a request is sent again, and let the client look for leaders.

        A client that saw a partition without a leader does not look for one again.
        """
        time.sleep(_RETRY_S)
        with suppress(KafkaException):
            self._consumer.list_topics(self._name, timeout=_REQUEST_S)

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()
        self._unreadable.observe(())

    def _consume(self, timeout_s: float) -> list[Message]:
        """Return what has arrived; wait for the first message only."""
        # The client waits until all of a count have arrived. After a pause some have already.
        messages: list[Message] = []
        if self._poll_interval_s:
            messages = self._consumer.consume(_COUNT_MAX, 0)
        if not messages:
            messages = self._consumer.consume(1, timeout_s)
            if messages:
                messages += self._consumer.consume(_COUNT_MAX, 0)
        return messages

    def _assign(self, partitions: list[TopicPartition]) -> None:
        self._consumer.assign(partitions)
        self._is_assigned = True

    def _plan_next_poll(self, count: int) -> None:
        now_s = time.monotonic()
        busy_count = BUSY_RECORDS_PER_S * (now_s - self._polled_s)
        factor = 1
        while factor < _BUSY_FACTOR_MAX and count >= factor * busy_count:
            factor *= 2
        self._polled_s = now_s
        self._next_poll_s = now_s + self._poll_interval_s * factor

    def _pace(self) -> None:
        if self._poll_interval_s and (wait_s := self._next_poll_s - time.monotonic()) > 0:
            time.sleep(wait_s)

    def _record_offsets(self, records: list[ReceivedRecord], errors: list[Message]) -> None:
        """Advance by records too: the client reports a partition's end only a long poll later."""
        read = {record.partition: record.offset + 1 for record in records}
        for message in errors:
            error, offset, number = message.error(), message.offset(), message.partition()
            assert error is not None
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                assert offset is not None
                assert number is not None
                read[number] = max(offset, read.get(number, 0))
        self._next_offsets |= read


def _paced_fetches(interval_s: float) -> dict[str, int]:
    """Return options with which the client fetches once for each poll, while records wait."""
    return {"queued.min.messages": 1, "fetch.queue.backoff.ms": max(1, round(1000 * interval_s))}
