"""Streams that start at given times: `python -m benchmarks.children.open_loop_load TASK`.

TASK is the JSON of `OpenLoopTask`. Reports `@ready`, waits for a line, starts each call at its time
whether or not earlier ones have ended, and reports `@result`. A call has a connection of its own.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop

from benchmarks.children.line_child import die_with_parent, report_line, wait_for_line
from cli.load.load_client import LoadTarget, TimedCall
from core.runtime.open_files import request_open_file_limit

_OPEN_FILES = 4096


class PlannedCall(msgspec.Struct):
    """A call and its time in seconds after the start."""

    at_s: float
    body: msgspec.Raw


class OpenLoopTask(msgspec.Struct, kw_only=True):
    """A load."""

    url: str
    key: str
    calls: str  # file with the JSON list of `PlannedCall`s


class CallTime(msgspec.Struct):
    """A call that has ended, in seconds."""

    number: int  # among the planned calls
    first_wait_s: float
    latency_s: float
    ended_at_s: float  # after the start


class OpenLoopResult(msgspec.Struct, kw_only=True):
    """The result of all calls."""

    calls: list[CallTime]
    failed: int
    late_s_max: float  # the longest time from a call's planned start to its start


async def run(task: OpenLoopTask, planned: Sequence[PlannedCall]) -> None:
    """Run the calls and report the result."""
    request_open_file_limit(_OPEN_FILES)
    report_line("ready")
    await asyncio.to_thread(wait_for_line)
    started_s = time.perf_counter()
    late_s = [0.0]

    async def send(one: PlannedCall) -> TimedCall:
        connection = await LoadTarget(task.url, task.key, bytes(one.body)).connect()
        late_s.append(time.perf_counter() - started_s - one.at_s)
        call = await connection.send()
        connection.close()
        return call

    async with asyncio.TaskGroup() as group:
        tasks = []
        for one in planned:
            await asyncio.sleep(max(0.0, started_s + one.at_s - time.perf_counter()))
            tasks.append(group.create_task(send(one)))
    calls = [task.result() for task in tasks]
    result = OpenLoopResult(
        calls=[
            CallTime(number, call.first_wait_s, call.latency_s, call.ended_s - started_s)
            for number, call in enumerate(calls)
            if not call.error
        ],
        failed=sum(bool(call.error) for call in calls),
        late_s_max=max(late_s),
    )
    report_line("result", msgspec.json.encode(result).decode())


if __name__ == "__main__":
    die_with_parent()
    named = msgspec.json.decode(sys.argv[1], type=OpenLoopTask)
    calls = msgspec.json.decode(Path(named.calls).read_bytes(), type=list[PlannedCall])
    uvloop.run(run(named, calls))
