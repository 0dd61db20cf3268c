"""Clients that call one after the other: `python -m benchmarks.children.online_load TASK`.

TASK is the JSON of `Task`. Says `@ready` when every client has called once, waits for a line, runs,
and says `@result` with every latency.
"""

import asyncio
import sys
import time
from urllib.parse import urlsplit

import msgspec
import uvloop

from benchmarks.children.line_child import die_with_parent, say, wait_for_line
from benchmarks.load.calls import Call, Connection, connected, post
from core.open_files import ask_for_open_files

_OTHER_FILES = 64


class Task(msgspec.Struct, kw_only=True):
    """What to do."""

    url: str
    key: str
    path: str
    body: str
    clients: int
    calls: int  # of all clients together, warming up not counted
    pieces_min: int = 0  # of each answer; with 1 or more it must be a whole stream


class Result(msgspec.Struct, kw_only=True):
    """What was found; `latencies_s` and `first_bytes_s` in the order in which calls ended."""

    seconds: float
    cpu_s: float
    latencies_s: list[float]
    first_bytes_s: list[float]
    pieces: int  # events that are parts of answers
    refused: int  # answers of 400 and above
    broken: int  # streams with an error, without `[DONE]`, or with fewer pieces than `pieces_min`


async def run(task: Task) -> None:
    """Warm up, wait to be told, run."""
    target = urlsplit(task.url)
    assert target.hostname is not None
    assert target.port is not None
    request = post(target.netloc, task.path, task.key, task.body.encode())
    ask_for_open_files(task.clients + _OTHER_FILES)
    clients = [await connected(target.hostname, target.port) for _ in range(task.clients)]
    await asyncio.gather(*(client.ask(request) for client in clients))
    say("ready")
    await asyncio.to_thread(wait_for_line)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    calls = await _call(clients, request, task.calls)
    result = Result(
        seconds=time.perf_counter() - began_s,
        cpu_s=time.process_time() - began_cpu_s,
        latencies_s=[call.latency_s for call in calls],
        first_bytes_s=[call.first_byte_s for call in calls],
        pieces=sum(call.pieces for call in calls),
        refused=sum(call.status >= 400 for call in calls),
        broken=sum(not is_whole(call, task.pieces_min) for call in calls),
    )
    say("result", msgspec.json.encode(result).decode())
    for client in clients:
        client.close()


def is_whole(call: Call, pieces_min: int) -> bool:
    """Whether an answer is what was asked for; of one that is no stream its status is all."""
    return not pieces_min or (call.is_done and not call.errors and call.pieces >= pieces_min)


async def _call(clients: list[Connection], request: bytes, count: int) -> list[Call]:
    left = count
    ended: list[Call] = []

    async def work(client: Connection) -> None:
        nonlocal left
        while left:
            left -= 1
            ended.append(await client.ask(request))

    await asyncio.gather(*map(work, clients))
    return ended


if __name__ == "__main__":
    die_with_parent()
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(run(msgspec.json.decode(sys.argv[1], type=Task)))
