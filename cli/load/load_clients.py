"""Closed-loop load clients: each sends its next call when the previous one has ended."""

import asyncio
import math
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from cli.exits import CommandError, unreachable_message
from cli.load.load_connection import LoadConnection, LoadTarget, TimedCall

_ERROR_PAUSE_S = 0.2
"""Pause after a failed call, so as not to flood a server that rejects calls at once."""


class ServerUnavailableError(CommandError):
    """The server does not answer."""


@dataclass(slots=True)
class LoadMeasurement:
    """The calls of all clients that ended within the measured time."""

    seconds: float = 0.0
    latencies_s: "array[float]" = field(default_factory=lambda: array("d"))
    first_waits_s: "array[float]" = field(default_factory=lambda: array("d"))
    event_count: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def add_call(self, call: TimedCall) -> None:
        """Add a call that has ended."""
        self.event_count += call.event_count
        if call.error:
            self.errors[call.error] += 1
            return
        self.latencies_s.append(call.latency_s)
        self.first_waits_s.append(call.first_wait_s)

    @property
    def calls_per_s(self) -> float:
        """Successful calls per second."""
        return len(self.latencies_s) / self.seconds


async def run_load(
    target: LoadTarget, *, client_count: int, seconds: float, call_timeout_s: float
) -> LoadMeasurement:
    """Run clients for `seconds`; calls still open then are aborted and not counted.

    Raises ServerUnavailableError when the first connection fails.
    """
    try:
        async with asyncio.timeout(call_timeout_s):
            first = await target.connect()
    except OSError as failure:  # includes TimeoutError
        raise ServerUnavailableError(unreachable_message(target.origin)) from failure
    result = LoadMeasurement()
    began_s = time.perf_counter()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for number in range(client_count):
                connection = first if number == 0 else None
                group.create_task(_repeat_calls(target, connection, result, call_timeout_s))
    result.seconds = time.perf_counter() - began_s
    return result


async def _repeat_calls(
    target: LoadTarget,
    connection: LoadConnection | None,
    result: LoadMeasurement,
    call_timeout_s: float,
) -> None:
    """Send calls until cancelled; reconnect when the connection is closed."""
    try:
        while True:
            try:
                async with asyncio.timeout(call_timeout_s):
                    if connection is None or not connection.is_open:
                        connection = await target.connect()
                    call = await connection.send()
            except TimeoutError:
                call = TimedCall(0.0, error="timeout")
                if connection is not None:
                    connection.close()
            except OSError:
                call = TimedCall(0.0, error="cannot connect")
            result.add_call(call)
            if call.error:
                await asyncio.sleep(_ERROR_PAUSE_S)
    finally:
        if connection is not None:
            connection.close()


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile: the smallest value that `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
