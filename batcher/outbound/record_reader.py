"""Reads records of one kind that other roles repeat, from the topic's present end on."""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from topics.records.catalogue import Topic
from topics.records.received_record import ReceivedRecord
from topics.records.records import Record
from topics.settings import KafkaSettings
from topics.tail_readers.tail_reader_thread import TailReaderThread, decode_records
from topics.tail_readers.topic_tail_reader import TopicTailReader

R = TypeVar("R", bound=Record)


class RecordReader(Generic[R]):
    """A thread that reads a topic from its present end on."""

    def __init__(  # noqa: PLR0913  each one is an option
        self,
        settings: KafkaSettings,
        topic: Topic,
        kind: type[R],
        *,
        client_id: str,
        on_records: Callable[[list[R]], None],
        on_failure: Callable[[Exception], None],
        is_newest_enough: bool = False,
        is_relevant: Callable[[bytes], bool] | None = None,
        partitions: Sequence[int] | None = None,
        poll_interval_s: float = 0.0,
    ) -> None:
        """Both callbacks run in the thread. Records of a newer release are a failure.

        With `is_newest_enough`, `on_records` gets the newest record of each key. Records whose key
        is not relevant are not decoded. For `partitions` and `poll_interval_s` see
        `TopicTailReader`.
        """
        self._kind, self._on_records = kind, on_records
        self._is_newest_enough, self._is_relevant = is_newest_enough, is_relevant
        self._tail = TopicTailReader(
            settings,
            topic,
            client_id=f"{client_id}-{topic.name}",
            partitions=partitions,
            reset_to_earliest=False,
            poll_interval_s=poll_interval_s,
        )
        self._thread = TailReaderThread(
            self._tail, self._read_records, name=f"{topic.name}-tail", on_failure=on_failure
        )

    def start(self) -> None:
        """Read as soon as Kafka is available."""
        self._thread.start_at_end()

    def start_at_end(self, timeout_s: float) -> None:
        """Read from the present end, once it is known. Raises KafkaUnavailableError."""
        self._tail.seek_to_end(timeout_s)
        self._thread.start()

    def stop(self) -> None:
        """Stop reading."""
        self._thread.stop()

    def _read_records(self, records: list[ReceivedRecord]) -> None:
        wanted: Iterable[ReceivedRecord] = records
        if self._is_newest_enough:
            wanted = newest_by_key(records)
        if (is_relevant := self._is_relevant) is not None:
            wanted = [record for record in wanted if is_relevant(record.key or b"")]
        if found := decoded(self._kind, wanted):
            self._on_records(found)


def newest_by_key(records: Iterable[ReceivedRecord]) -> Iterable[ReceivedRecord]:
    """Return the newest record of each key, and every record without one."""
    return {record.key or record.offset: record for record in records}.values()


def decoded(kind: type[R], records: Iterable[ReceivedRecord]) -> list[R]:
    """Return the readable records. Raises SchemaTooNewError."""
    return [record for _, record in decode_records(kind, records) if record is not None]
