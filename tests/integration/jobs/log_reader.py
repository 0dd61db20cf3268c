"""Reading back what a test put on the log."""

import time
import uuid
from collections.abc import Callable

from topics.clients.producer import RecordProducer
from topics.records.catalogue import REQUESTS_BULK, Topic
from topics.records.codec import decode
from topics.records.received_record import ReceivedRecord
from topics.records.records import Chunk
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

WAIT_S_MAX = 30.0
MARK = ("mark", b"end")


def records_of(kafka: KafkaSettings, topic: Topic) -> list[ReceivedRecord]:
    """Return every record of `topic` up to now: up to a mark on the end of each partition."""
    mark = uuid.uuid4().bytes
    producer = RecordProducer(kafka, client_id="test-marks", linger_ms=0)
    for partition in range(topic.partition_count):
        producer.send(topic.name, mark, partition=partition, headers=[MARK])
    producer.close()
    tail = TopicTailReader(kafka, topic, client_id="test-reader")
    records: list[ReceivedRecord] = []

    def read() -> bool:
        records.extend(tail.poll(0.1))
        return sum(record.value == mark for record in records) == topic.partition_count

    try:
        wait_until(read)
    finally:
        tail.close()
    return [record for record in records if MARK not in record.headers]


def chunks_by_partition(kafka: KafkaSettings) -> dict[int, list[Chunk]]:
    """Return the chunks of `requests.bulk` in the order of each partition."""
    found: dict[int, list[Chunk]] = {}
    for record in records_of(kafka, REQUESTS_BULK):
        chunk = decode(Chunk, record.value, record.headers)
        found.setdefault(record.partition, []).append(chunk)
    return found


def indexes(kafka: KafkaSettings) -> list[int]:
    """Return the item indexes on `requests.bulk`, sorted, repeats included."""
    return sorted(
        item.index
        for chunks in chunks_by_partition(kafka).values()
        for chunk in chunks
        for item in chunk.items
    )


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll `condition` until it holds, or fail."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)
