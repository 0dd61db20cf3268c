"""Reads chunks with a bare aiokafka consumer: `… .aiokafka_reader SERVERS PREFIX ITEMS`."""

import asyncio
import sys
import uuid

import uvloop
from aiokafka import AIOKafkaConsumer

from benchmarks.children.line_child import die_with_parent, wait_for_line
from benchmarks.data.chunk_topic import Tally
from topics.records.catalogue import REQUESTS_BULK
from topics.settings import KafkaSettings

POLL_MS = 200


async def read(servers: str, prefix: str, items: int) -> None:
    """Read all records under a consumer group of this run."""
    settings = KafkaSettings(bootstrap_servers=servers)
    consumer = AIOKafkaConsumer(
        prefix + REQUESTS_BULK.name,
        bootstrap_servers=servers,
        group_id=f"bare-{uuid.uuid4().hex}",
        auto_offset_reset="earliest",
        enable_auto_commit=True,
        auto_commit_interval_ms=int(settings.commit_interval_s * 1000),
        session_timeout_ms=int(settings.session_timeout_s * 1000),
    )
    await consumer.start()
    tally, finished = Tally(items), False
    while not finished:
        for records in (await consumer.getmany(timeout_ms=POLL_MS)).values():
            for record in records:
                finished = tally.add_record(record.value)
    tally.report()
    await consumer.stop()
    await asyncio.to_thread(wait_for_line)


def main(servers: str, prefix: str, items: str) -> None:
    """Read until every item is seen."""
    uvloop.run(read(servers, prefix, int(items)))


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
