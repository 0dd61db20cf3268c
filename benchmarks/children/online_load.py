"""Closed-loop clients: `python -m benchmarks.children.online_load TASK`.

TASK is the JSON of `LoadTask`. Reports `@ready` when every client has called once, waits for a
line, runs, and reports `@result` with every latency.
"""

import asyncio
import sys
import time

import msgspec
import uvloop

from benchmarks.children.line_child import die_with_parent, report_line, wait_for_line
from cli.load.load_client import LoadConnection, LoadTarget, TimedCall
from core.runtime.open_files import request_open_file_limit

_OTHER_FILES = 64


class LoadTask(msgspec.Struct, kw_only=True):
    """A load: the request, the number of clients and the number of calls."""

    url: str  # of the calls, with their path
    key: str
    body: str
    clients: int
    calls: int  # of all clients together, without the warm-up
    pieces_min: int = 0  # of each response; 1 or more requires a complete stream


class LoadResult(msgspec.Struct, kw_only=True):
    """The result; `latencies_s` and `first_waits_s` are in the order of completion."""

    seconds: float
    cpu_s: float
    latencies_s: list[float]
    first_waits_s: list[float]  # until the first piece of a stream, or byte of another body
    pieces: int  # events with parts of answers
    refused: int  # responses with status 400 and above
    broken: int  # streams with an error, without `[DONE]`, or with fewer pieces than `pieces_min`


async def run(task: LoadTask) -> None:
    """Warm up, wait for a line, run the calls and report the result.

    Raises ConnectionError when a server closes a connection.
    """
    target = LoadTarget(task.url, task.key, task.body.encode())
    request_open_file_limit(task.clients + _OTHER_FILES)
    clients = [await target.connect() for _ in range(task.clients)]
    await asyncio.gather(*map(_send, clients))
    report_line("ready")
    await asyncio.to_thread(wait_for_line)
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    calls = await _send_all(clients, task.calls)
    result = LoadResult(
        seconds=time.perf_counter() - started_s,
        cpu_s=time.process_time() - started_cpu_s,
        latencies_s=[call.latency_s for call in calls],
        first_waits_s=[call.first_wait_s for call in calls],
        pieces=sum(call.event_count for call in calls),
        refused=sum(call.status >= 400 for call in calls),
        broken=sum(not is_complete(call, task.pieces_min) for call in calls),
    )
    report_line("result", msgspec.json.encode(result).decode())
    for client in clients:
        client.close()


def is_complete(call: TimedCall, pieces_min: int) -> bool:
    """Return whether a stream is complete; a unary response always is."""
    return not pieces_min or (call.is_done and not call.error and call.event_count >= pieces_min)


async def _send_all(clients: list[LoadConnection], count: int) -> list[TimedCall]:
    remaining = count
    ended: list[TimedCall] = []

    async def work(client: LoadConnection) -> None:
        nonlocal remaining
        while remaining:
            remaining -= 1
            ended.append(await _send(client))

    await asyncio.gather(*map(work, clients))
    return ended


async def _send(client: LoadConnection) -> TimedCall:
    call = await client.send()
    if not client.is_open:
        raise ConnectionError(call.error or "closed")
    return call


if __name__ == "__main__":
    die_with_parent()
    uvloop.run(run(msgspec.json.decode(sys.argv[1], type=LoadTask)))
