"""Reads `capacity`, `demand`, `backlog`, `scaling` from their present ends, each in a thread."""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from autoscaler.metrics import DROPPED
from core.errors import RecordUnreadableError
from topics.records.catalogue import BACKLOG, CAPACITY, DEMAND, SCALING, Topic
from topics.records.codec import decode_value, kind_of
from topics.records.kinds import KINDS
from topics.records.received_record import ReceivedRecord
from topics.records.records import Record
from topics.settings import KafkaSettings
from topics.tail_readers.tail_reader_thread import TailReaderThread
from topics.tail_readers.topic_tail_reader import TopicTailReader

_LOG = logging.getLogger(__name__)
_TOPICS: Final = (CAPACITY, DEMAND, BACKLOG, SCALING)
_POLL_INTERVAL_S: Final = 0.2  # decisions are made each second
_BACKLOG_INTERVAL_S: Final = 0.02  # few records, and calls wait for a decision about theirs


class TopicInputs:
    """A tail reader for each topic. The callbacks run in their threads."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        client_id: str,
        unavailable_s_max: float,
        on_records: Callable[[list[Record]], None],
    ) -> None:
        """Polls are retried for `unavailable_s_max` while Kafka is unavailable."""
        self._on_records = on_records
        self._threads = {
            topic.name: TailReaderThread(
                TopicTailReader(
                    settings,
                    topic,
                    client_id=f"{client_id}-{topic.name}",
                    reset_to_earliest=False,
                    poll_interval_s=_BACKLOG_INTERVAL_S if topic is BACKLOG else _POLL_INTERVAL_S,
                ),
                self._reads(topic),
                name=f"{topic.name}-tail",
                unavailable_s_max=unavailable_s_max,
            )
            for topic in _TOPICS
        }

    def start(self) -> None:
        """Read as soon as Kafka is available."""
        for thread in self._threads.values():
            thread.start_at_end()

    @property
    def is_caught_up(self) -> bool:
        """Whether each record that is appended from now on is read."""
        return all(thread.is_caught_up for thread in self._threads.values())

    def is_readable(self, topic: str) -> bool:
        """Return whether a topic can be read now."""
        return not self._threads[topic].unreadable_partitions

    def raise_failure(self) -> None:
        """Raise what ended a thread. Raises MillraceError."""
        for thread in self._threads.values():
            thread.raise_failure()

    def stop(self) -> None:
        """Stop reading."""
        for thread in self._threads.values():
            thread.request_stop()
        for thread in self._threads.values():
            thread.stop()

    def _reads(self, topic: Topic) -> Callable[[list[ReceivedRecord]], None]:
        def read(received: list[ReceivedRecord]) -> None:
            newest = {one.key or one.offset: one for one in received} if topic is CAPACITY else {}
            records = list(decoded(newest.values() if newest else received, topic.records))
            if records:
                self._on_records(records)

        return read


def decoded(received: Iterable[ReceivedRecord], kinds: Iterable[type[Record]]) -> Iterable[Record]:
    """Yield each record of these kinds; an unreadable one is counted, logged and left out.

    Raises SchemaTooNewError.
    """
    by_name = {KINDS[kind]: kind for kind in kinds}
    for one in received:
        if one.value is None:
            continue
        try:
            kind = by_name.get(kind_of(one.headers))
            if kind is None:
                raise RecordUnreadableError("the topic has no such records")
            record = decode_value(kind, one.value)
        except RecordUnreadableError:
            DROPPED.labels("record").inc()
            extra = {"topic": one.topic, "offset": one.offset}
            _LOG.warning("a record is unreadable", extra=extra)
            continue
        yield record
