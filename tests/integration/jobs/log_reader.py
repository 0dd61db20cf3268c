"""Reads records back from the log."""

import uuid

from tests.support.until import until
from topics.clients.producer import RecordProducer
from topics.records.catalogue import REQUESTS_BULK, Topic
from topics.records.codec import decode
from topics.records.received_record import ReceivedRecord
from topics.records.records import Chunk
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

MARK = ("mark", b"end")


def records_of(kafka: KafkaSettings, topic: Topic) -> list[ReceivedRecord]:
    """Return every record of `topic` so far, up to a mark at the end of each partition."""
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
        until(read, timeout_s=40)
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
