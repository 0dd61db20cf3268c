"""Reads chunks with the batcher's Faust app: `… .faust_reader SERVERS PREFIX ITEMS`."""

import asyncio
import os
import sys
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvloop

from batcher.faust_app.ordered_acks import OrderedAcks
from batcher.faust_app.request_stream import RequestStream, build_app
from batcher.settings import BatcherSettings
from benchmarks.children.line_child import die_with_parent, wait_for_line
from benchmarks.data.chunk_topic import JOB_CLASS, Tally
from topics.clients.offset_tracker import Partition
from topics.records.received_record import ReceivedRecord
from topics.settings import KafkaSettings

ASSIGNED_S_MAX = 60.0


class Reader:
    """Decodes and acknowledges every record at once, in order."""

    def __init__(self, items: int) -> None:
        """Expect `items` in all."""
        self._tally = Tally(items)
        self._acks = OrderedAcks(RequestStream.acknowledge)
        self.done = asyncio.Event()

    def on_record(self, record: ReceivedRecord, event: Any) -> None:
        """See `batcher.faust_app.request_stream.StreamListener`."""
        place = (record.topic, record.partition)
        ticket = self._acks.track(place, event, item_count=1, now_s=0.0)
        finished = self._tally.add_record(record.value)
        self._acks.settle(ticket, 1)
        if finished and not self.done.is_set():
            self._tally.report()
            self.done.set()

    async def wait_until_ready(self) -> None:
        """See `StreamListener`; the reader is always ready."""

    def on_assign(self, end_offsets: Mapping[Partition, int]) -> None:
        """See `StreamListener`."""

    def on_revoke(self, partitions: list[Partition]) -> None:
        """See `StreamListener`."""
        self._acks.drop_partitions(partitions)

    def on_failure(self, failure: BaseException) -> None:
        """See `StreamListener`."""
        sys.stderr.write(f"{failure!r}\n")
        os._exit(1)


async def read(servers: str, prefix: str, items: int, folder: Path) -> None:
    """Read all records under a consumer group of this run."""
    group = KafkaSettings(bootstrap_servers=servers, topic_prefix=f"{uuid.uuid4().hex}.")
    app = build_app(group, BatcherSettings(job_class="bulk"), folder)
    reader = Reader(items)
    log = KafkaSettings(bootstrap_servers=servers, topic_prefix=prefix)
    RequestStream(app, log, JOB_CLASS, reader)
    async with asyncio.timeout(ASSIGNED_S_MAX):
        await app.start()
    await reader.done.wait()
    await asyncio.to_thread(wait_for_line)
    os._exit(0)  # the shutdown is not measured


def main(servers: str, prefix: str, items: str) -> None:
    """Read until every item is seen."""
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(read(servers, prefix, int(items), Path(folder)))


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
