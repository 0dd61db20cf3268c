"""The stages, each a process: `… .stages STAGE SERVERS RUN ARGUMENTS`; RUN ends names of topics.

Each reports `@ready`, and `@done` once every item has passed; the feed waits for a line before.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import msgspec
import psycopg
import uvloop
from confluent_kafka import Consumer, Producer

from benchmarks.children.line_child import die_with_parent, report_line, wait_for_line
from benchmarks.data.input_files import InputLine, chat_answer

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


RECORDS, ROWS, LINES = 20, 5000, 2000

TABLE = """
CREATE TABLE IF NOT EXISTS results (run text, item_index int, custom_id text, status_code smallint,
    body bytea, input_tokens int, output_tokens int, PRIMARY KEY (run, item_index))
"""
_INSERT = """
INSERT INTO results SELECT %s, * FROM unnest(%b::int[], %b::text[], %b::smallint[], %b::bytea[],
    %b::int[], %b::int[]) ON CONFLICT DO NOTHING
"""
_READ = """
SELECT item_index, custom_id, status_code, body FROM results WHERE run = %s ORDER BY item_index
"""
_LINE = (
    b'{"id":"batch_req_%d","custom_id":%b,"response":{"status_code":%d,"request_id":"req_%d",'
    b'"body":%b},"error":null}\n'
)


def feed(servers: str, run: str, path: str) -> None:
    """Turn a file into chunk records; collecting the ids is the only check."""
    output, seen, items = TopicWriter(servers, REQUESTS + run), set(), []
    decode = msgspec.json.Decoder(InputLine).decode
    report_line("ready")
    wait_for_line()
    with open(path, "rb") as file:  # noqa: PTH123
        for index, text in enumerate(file):
            line = decode(text)
            seen.add(line.custom_id)
            items.append(Item(index, line.custom_id, line.body))
            if len(items) == CHUNK_ITEMS:
                output.send(items)
                items = []
    if items:
        output.send(items)
    output.flush()
    report_line("done", str(len(seen)))
    wait_for_line()


def group(servers: str, run: str, items: str) -> None:
    """Turn chunks into batches."""
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(_group(servers, run, int(items), folder))


async def _group(servers: str, run: str, items: int, folder: str) -> None:
    """Forward every chunk as a batch with plain Faust."""
    import faust

    app = faust.App(
        f"group{run}",
        broker=f"kafka://{servers}",
        broker_session_timeout=6.0,
        broker_heartbeat_interval=1.0,
        broker_max_poll_records=50,
        stream_buffer_maxsize=1024,
        stream_wait_empty=False,
        topic_disable_leader=True,
        topic_allow_declare=False,
        value_serializer="raw",
        web_enabled=False,
        datadir=folder,
    )
    output, done, count = TopicWriter(servers, BATCHES + run), asyncio.Event(), 0

    async def read(stream: Any) -> None:
        nonlocal count
        async for event in stream.noack().events():
            chunk = decode_items(event.value)
            output.send(chunk)
            count += len(chunk)
            event.ack()
            if count >= items:
                done.set()

    app.agent(app.topic(REQUESTS + run, value_type=bytes, value_serializer="raw"))(read)
    await app.start()
    report_line("ready")
    await done.wait()
    await asyncio.to_thread(output.flush)
    report_line("done")
    await asyncio.to_thread(wait_for_line)
    os._exit(0)  # the shutdown is not measured


def answer(servers: str, run: str, items: str) -> None:
    """Turn batches into results from a template."""
    output, count = TopicWriter(servers, RESULTS + run), 0
    consumer = subscribe(servers, f"answer{run}", BATCHES + run)
    while count < int(items):
        for record in consumer.consume(RECORDS, 1.0):
            batch = decode_items(record.value())
            count += len(batch)
            output.send(
                [
                    Result(i.index, i.custom_id, 200, msgspec.Raw(chat_answer(i.index)), 230, 160)
                    for i in batch
                ]
            )
    output.flush()
    report_line("done")
    wait_for_line()


def store(servers: str, run: str, items: str, database_url: str, path: str) -> None:
    """Turn results into rows until every item has one, then the rows into a file."""
    connection, count = psycopg.connect(database_url), 0
    consumer = subscribe(servers, f"store{run}", RESULTS + run)
    while count < int(items):
        records = consumer.consume(RECORDS, 0.2)
        rows = [row for record in records for row in decode_results(record.value())]
        if rows:
            columns = [
                [row.index for row in rows],
                [row.custom_id for row in rows],
                [row.status_code for row in rows],
                [bytes(row.body) for row in rows],
                [row.input_tokens for row in rows],
                [row.output_tokens for row in rows],
            ]
            connection.execute(_INSERT, (run, *columns))
            connection.commit()
            count += len(rows)
    _write_file(connection, run, path)
    report_line("done")
    wait_for_line()


def _write_file(connection: psycopg.Connection, run: str, path: str) -> None:
    """Write the rows in index order."""
    lines: list[bytes] = []
    with (
        open(path, "wb") as file,  # noqa: PTH123
        connection.cursor("rows", binary=True) as cursor,
    ):
        cursor.itersize = ROWS
        cursor.execute(_READ, (run,))
        for index, custom_id, status_code, body in cursor:
            lines.append(_LINE % (index, encode(custom_id), status_code, index, body))
            if len(lines) == LINES:
                file.writelines(lines)
                lines.clear()
        file.writelines(lines)


STAGES: dict[str, Callable[..., None]] = {
    "feed": feed,
    "group": group,
    "answer": answer,
    "store": store,
}

if __name__ == "__main__":
    die_with_parent()
    STAGES[sys.argv[1]](*sys.argv[2:])
