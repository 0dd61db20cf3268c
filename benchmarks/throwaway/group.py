"""Turns chunks into batches with Faust: `… .group SERVERS RUN ITEMS`."""

import asyncio
import os
import sys
import tempfile
from typing import Any

import faust
import uvloop

from benchmarks.children.line_child import die_with_parent, report_line, wait_for_line
from benchmarks.throwaway.wire import BATCHES, REQUESTS, TopicWriter, decode_items


async def batch(servers: str, run: str, items: int, folder: str) -> None:
    """Forward every chunk as a batch; plain Faust on uvloop."""
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


def main(servers: str, run: str, items: str) -> None:
    """Forward until every item has passed."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        asyncio.run(batch(servers, run, int(items), folder))


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
