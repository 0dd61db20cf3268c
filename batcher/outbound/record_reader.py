"""Reads records of one kind that other roles repeat, from the topic's present end on."""

from collections.abc import Callable
from typing import Generic, TypeVar

from topics.records.catalogue import Topic
from topics.records.received_record import ReceivedRecord
from topics.records.records import Record
from topics.settings import KafkaSettings
from topics.tail_readers.tail_reader_thread import TailReaderThread, decode_records
from topics.tail_readers.topic_tail_reader import TopicTailReader

R = TypeVar("R", bound=Record)


class RecordReader(Generic[R]):
    """A thread that reads a topic. The batcher works without its records, less fairly."""

    def __init__(
        self,
        settings: KafkaSettings,
        topic: Topic,
        kind: type[R],
        *,
        client_id: str,
        on_records: Callable[[list[R]], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """Both callbacks run in the thread. Records of a newer release are a failure."""
        self._kind, self._on_records = kind, on_records
        tail = TopicTailReader(
            settings, topic, client_id=f"{client_id}-{topic.name}", reset_to_earliest=False
        )
        self._thread = TailReaderThread(
            tail, self._read_records, name=f"{topic.name}-tail", on_failure=on_failure
        )

    def start(self) -> None:
        """Read as soon as Kafka is available."""
        self._thread.start_at_end()

    def stop(self) -> None:
        """Stop reading."""
        self._thread.stop()

    def _read_records(self, records: list[ReceivedRecord]) -> None:
        if found := [record for _, record in decode_records(self._kind, records) if record]:
            self._on_records(found)
