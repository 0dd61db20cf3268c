"""What the throwaway's processes agree on: records, topics, clients. No header, no schema."""

from typing import Any

import msgspec
from confluent_kafka import Consumer, Producer

from benchmarks.children.line_child import say

REQUESTS, BATCHES, RESULTS = "requests", "batches", "results"
TOPICS = (REQUESTS, BATCHES, RESULTS)
PARTITIONS = 4
CHUNK_ITEMS = 100
RECORD_BYTES_MAX = 2_000_000


class Item(msgspec.Struct, array_like=True):
    """A line on its way to the engine."""

    index: int
    custom_id: str
    body: msgspec.Raw


class Result(msgspec.Struct, array_like=True):
    """An answer on its way to the table."""

    index: int
    custom_id: str
    status_code: int
    body: msgspec.Raw
    input_tokens: int
    output_tokens: int


encode = msgspec.json.encode
decode_items = msgspec.json.Decoder(list[Item]).decode
decode_results = msgspec.json.Decoder(list[Result]).decode


class Output:
    """A producer that fills the partitions of one topic in turn."""

    def __init__(self, servers: str, topic: str) -> None:
        """Connect lazily."""
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
        """Queue one record, waiting while the queue is full."""
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
        """Wait until everything is acknowledged."""
        self._producer.flush(60)


def subscribed(servers: str, group: str, topic: str) -> Consumer:
    """Return a consumer of one topic, once it has its partitions; then say `@ready`."""
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
        consumer.poll(0.05)  # nothing has been sent yet, so this brings partitions only
    say("ready")
    return consumer
