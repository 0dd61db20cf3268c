"""An open-loop load: calls arrive at a rate, however many of them wait for their answers.

Closed-loop clients slow down with the server, so they cannot offer more than it serves. Arrivals
are a Poisson process (exponential gaps).
"""

import asyncio
from random import Random
from typing import Final

from cli.load.load_client import LoadConnection, LoadTarget, TimedCall

CONNECTIONS_MAX: Final = 1000
"""Open calls; an arrival beyond them is recorded as failed and not sent."""


async def offer_calls(
    target: LoadTarget, *, calls_per_s: float, seconds: float, timeout_s: float, random: Random
) -> list[TimedCall]:
    """Send calls for `seconds`, each on a free or a new connection; return them when all ended.

    A call without a response within `timeout_s` has the error `timeout`.
    """
    loop = asyncio.get_running_loop()
    idle: list[LoadConnection] = []
    ended: list[TimedCall] = []
    open_tasks: set[asyncio.Task[None]] = set()
    began_s = loop.time()
    next_s = began_s
    while (next_s := next_s + random.expovariate(calls_per_s)) < began_s + seconds:
        await asyncio.sleep(next_s - loop.time())
        if len(open_tasks) >= CONNECTIONS_MAX:
            ended.append(TimedCall(0.0, error="too many open calls"))
            continue
        task = loop.create_task(_send_call(target, idle, ended, timeout_s))
        open_tasks.add(task)
        task.add_done_callback(open_tasks.discard)
    await asyncio.gather(*open_tasks)
    for connection in idle:
        connection.close()
    return ended


async def _send_call(
    target: LoadTarget, idle: list[LoadConnection], ended: list[TimedCall], timeout_s: float
) -> None:
    connection: LoadConnection | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while idle and connection is None:
                connection = candidate if (candidate := idle.pop()).is_open else None
            connection = connection or await target.connect()
            ended.append(await connection.send())
    except TimeoutError:
        ended.append(TimedCall(0.0, error="timeout"))
    except OSError:
        ended.append(TimedCall(0.0, error="cannot connect"))
    else:
        if connection.is_open:
            idle.append(connection)
        return
    if connection is not None:
        connection.close()
