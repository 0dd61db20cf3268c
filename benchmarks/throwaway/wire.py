"""Records, topics and clients of the throwaway pipeline, without headers or schema."""

from typing import Any

import msgspec
from confluent_kafka import Consumer, Producer

from benchmarks.children.line_child import report_line

REQUESTS, BATCHES, RESULTS = "requests", "batches", "results"
TOPICS = (REQUESTS, BATCHES, RESULTS)
PARTITIONS = 4
CHUNK_ITEMS = 100
RECORD_BYTES_MAX = 2_000_000


class Item(msgspec.Struct, array_like=True):
    """A line for the engine."""

    index: int
    custom_id: str
    body: msgspec.Raw


class Result(msgspec.Struct, array_like=True):
    """An answer for the table."""

    index: int
    custom_id: str
    status_code: int
    body: msgspec.Raw
    input_tokens: int
    output_tokens: int


encode = msgspec.json.encode
decode_items = msgspec.json.Decoder(list[Item]).decode
decode_results = msgspec.json.Decoder(list[Result]).decode


class TopicWriter:
    """A producer that fills the partitions of one topic round-robin."""

    def __init__(self, servers: str, topic: str) -> None:
        """Create the producer, which connects lazily."""
        self._topic, self._count = topic, 0
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "acks": "all",
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 5,
                "batch.size": 1_000_000,
                "message.max.bytes": RECORD_BYTES_MAX,
            }
        )

    def send(self, records: Any) -> None:
        """Queue one record; wait while the queue is full."""
        value, partition = encode(records), self._count % PARTITIONS
        self._count += 1
        while True:
            try:
                self._producer.produce(self._topic, value, partition=partition)
                self._producer.poll(0)
                return
            except BufferError:
                self._producer.poll(0.01)

    def flush(self) -> None:
        """Wait until all records are acknowledged."""
        self._producer.flush(60)


def subscribe(servers: str, group: str, topic: str) -> Consumer:
    """Return a consumer of one topic once it has partitions; then report `@ready`."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
            "session.timeout.ms": 6000,
        }
    )
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.05)  # no record has been sent yet, so this only awaits the assignment
    report_line("ready")
    return consumer
