"""Reads single records by their offsets, without a consumer group."""

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from topics.clients.client_factory import new_client
from topics.errors import KafkaUnavailableError
from topics.records.access import NO_GROUP
from topics.records.catalogue import Topic
from topics.records.received_record import ReceivedRecord, received_records
from topics.settings import KafkaSettings

GAP_MAX: Final = 64
"""Offsets between two wanted records of a partition that are read and skipped; a larger gap costs
another request."""

_FETCH_WAIT_MS: Final = 10
_QUEUE_KBYTES: Final = 16 * 1024
_COUNT_MAX: Final = 500
_POLL_S: Final = 0.1


class RecordFetcher:
    """Fetches records of one topic; connects with the first fetch. Thread-safe."""

    def __init__(self, settings: KafkaSettings, topic: Topic, *, client_id: str) -> None:
        """Do not connect yet."""
        self._settings, self._client_id = settings, client_id
        self._name = settings.topic_prefix + topic.name
        self._consumer: Consumer | None = None
        self._lock = threading.Lock()
        self._is_closing = False

    def fetch(
        self, wanted: Mapping[int, Collection[int]], timeout_s: float
    ) -> dict[tuple[int, int], ReceivedRecord]:
        """Return the records at the `wanted` offsets of each partition, by partition and offset.

        Records that are not on the log any more are absent. Raises KafkaUnavailableError, also when
        not all were read within `timeout_s`.
        """
        found: dict[tuple[int, int], ReceivedRecord] = {}
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            consumer = self._connect()
            try:
                for runs in _rounds(wanted):
                    self._fetch_runs(consumer, runs, found, deadline_s)
            finally:
                consumer.unassign()
        keys = {(number, offset) for number, offsets in wanted.items() for offset in offsets}
        return {key: found[key] for key in keys & found.keys()}

    def close(self) -> None:
        """Abort a fetch in progress and close the client."""
        self._is_closing = True
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None

    def _fetch_runs(
        self,
        consumer: Consumer,
        runs: Mapping[int, range],
        found: dict[tuple[int, int], ReceivedRecord],
        deadline_s: float,
    ) -> None:
        """Read a range of offsets of each partition."""
        consumer.assign([TopicPartition(self._name, n, run.start) for n, run in runs.items()])
        left = dict(runs)
        while left:
            if self._is_closing or time.monotonic() > deadline_s:
                raise KafkaUnavailableError("records were not read again in time")
            messages = consumer.consume(_COUNT_MAX, _POLL_S)
            for record in received_records(messages, self._settings.topic_prefix):
                found[record.partition, record.offset] = record
            for number, offset in map(_position, messages):
                if number in left and offset >= left[number].stop - 1:
                    del left[number]

    def _connect(self) -> Consumer:
        if self._consumer is None:
            self._consumer = new_client(
                Consumer,
                self._settings.client_options()
                | {
                    "client.id": self._client_id,
                    "group.id": self._settings.topic_prefix + NO_GROUP,
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "earliest",  # of what is left if records were deleted
                    "fetch.wait.max.ms": _FETCH_WAIT_MS,
                    "queued.max.messages.kbytes": _QUEUE_KBYTES,
                },
            )
        return self._consumer


def _position(message: Message) -> tuple[int, int]:
    """Return the partition and the last offset that a message shows as read; -1 for an error."""
    error, number, offset = message.error(), message.partition(), message.offset()
    if number is None or offset is None:
        return -1, -1
    if error is None:
        return number, offset
    is_end = error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001
    return (number, offset) if is_end else (-1, -1)


def _rounds(wanted: Mapping[int, Collection[int]]) -> Iterator[dict[int, range]]:
    """Yield ranges of offsets to read, one of each partition in each round."""
    pending = {number: split_runs(offsets) for number, offsets in wanted.items() if offsets}
    while pending:
        yield {number: runs[0] for number, runs in pending.items()}
        pending = {number: runs[1:] for number, runs in pending.items() if runs[1:]}


def split_runs(offsets: Collection[int]) -> list[range]:
    """Return ascending ranges that hold all `offsets`, without gaps longer than `GAP_MAX`."""
    runs: list[range] = []
    for offset in sorted(offsets):
        if runs and offset - runs[-1].stop <= GAP_MAX:
            runs[-1] = range(runs[-1].start, offset + 1)
        else:
            runs.append(range(offset, offset + 1))
    return runs
