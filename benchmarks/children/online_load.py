"""Closed-loop clients: `python -m benchmarks.children.online_load TASK`.

TASK is the JSON of `LoadTask`. Reports `@ready` when every client has called once, waits for a
line, runs, and reports `@result` with every latency.
"""

import asyncio
import sys
import time
from urllib.parse import urlsplit

import msgspec
import uvloop

from benchmarks.children.line_child import die_with_parent, report_line, wait_for_line
from benchmarks.load.calls import Call, Connection, connected, post
from core.open_files import request_open_file_limit

_OTHER_FILES = 64


class LoadTask(msgspec.Struct, kw_only=True):
    """A load: the request, the number of clients and the number of calls."""

    url: str
    key: str
    path: str
    body: str
    clients: int
    calls: int  # of all clients together, without the warm-up
    pieces_min: int = 0  # of each response; 1 or more requires a complete stream


class LoadResult(msgspec.Struct, kw_only=True):
    """The result; `latencies_s` and `first_bytes_s` are in the order of completion."""

    seconds: float
    cpu_s: float
    latencies_s: list[float]
    first_bytes_s: list[float]
    pieces: int  # events with parts of answers
    refused: int  # responses with status 400 and above
    broken: int  # streams with an error, without `[DONE]`, or with fewer pieces than `pieces_min`


async def run(task: LoadTask) -> None:
    """Warm up, wait for a line, run the calls and report the result."""
    target = urlsplit(task.url)
    assert target.hostname is not None
    assert target.port is not None
    request = post(target.netloc, task.path, task.key, task.body.encode())
    request_open_file_limit(task.clients + _OTHER_FILES)
    clients = [await connected(target.hostname, target.port) for _ in range(task.clients)]
    await asyncio.gather(*(client.ask(request) for client in clients))
    report_line("ready")
    await asyncio.to_thread(wait_for_line)
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    calls = await _call(clients, request, task.calls)
    result = LoadResult(
        seconds=time.perf_counter() - started_s,
        cpu_s=time.process_time() - started_cpu_s,
        latencies_s=[call.latency_s for call in calls],
        first_bytes_s=[call.first_byte_s for call in calls],
        pieces=sum(call.pieces for call in calls),
        refused=sum(call.status >= 400 for call in calls),
        broken=sum(not is_complete(call, task.pieces_min) for call in calls),
    )
    report_line("result", msgspec.json.encode(result).decode())
    for client in clients:
        client.close()


def is_complete(call: Call, pieces_min: int) -> bool:
    """Return whether a stream is complete; a unary response always is."""
    return not pieces_min or (call.is_done and not call.errors and call.pieces >= pieces_min)


async def _call(clients: list[Connection], request: bytes, count: int) -> list[Call]:
    remaining = count
    ended: list[Call] = []

    async def work(client: Connection) -> None:
        nonlocal remaining
        while remaining:
            remaining -= 1
            ended.append(await client.ask(request))

    await asyncio.gather(*map(work, clients))
    return ended


if __name__ == "__main__":
    die_with_parent()
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(run(msgspec.json.decode(sys.argv[1], type=LoadTask)))
