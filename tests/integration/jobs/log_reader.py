"""Reading back what a test put on the log."""

import time
from collections.abc import Callable

from topics.catalogue import REQUESTS_BULK, Topic
from topics.codec import decode
from topics.consumer import Received
from topics.records import Chunk
from topics.settings import KafkaSettings
from topics.tail import TopicTail

WAIT_S_MAX = 20.0


def records_of(kafka: KafkaSettings, topic: Topic) -> list[Received]:
    """Return every record of `topic` up to now."""
    tail = TopicTail(kafka, topic, client_id="test-reader")
    try:
        return tail.read_to_end(WAIT_S_MAX)
    finally:
        tail.close()


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
