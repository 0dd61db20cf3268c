"""Clients that send one call after the other for a time, and the result of all of them."""

import asyncio
import math
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from cli.exits import CommandError
from cli.load.load_connection import CallTarget, LoadConnection, TimedCall

_PAUSE_S = 0.2
"""Pause after a failed call, so that a refusing server is not overloaded."""


class ServerUnavailableError(CommandError):
    """The server does not answer."""


@dataclass(slots=True)
class LoadResult:
    """The ended calls of all clients."""

    seconds: float = 0.0
    latencies_s: "array[float]" = field(default_factory=lambda: array("d"))
    first_waits_s: "array[float]" = field(default_factory=lambda: array("d"))
    event_count: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def record_call(self, call: TimedCall) -> None:
        """Add an ended call."""
        self.event_count += call.event_count
        if call.error:
            self.errors[call.error] += 1
            return
        self.latencies_s.append(call.latency_s)
        self.first_waits_s.append(call.first_wait_s)

    @property
    def calls_per_s(self) -> float:
        """Return successful calls per second."""
        return len(self.latencies_s) / self.seconds


async def run_load(
    target: CallTarget, *, client_count: int, seconds: float, call_timeout_s: float
) -> LoadResult:
    """Run clients for `seconds`; calls in progress at the end are aborted and not counted.

    Raises ServerUnavailableError when the first connection fails.
    """
    try:
        async with asyncio.timeout(call_timeout_s):
            first = await target.connect()
    except OSError as failure:  # TimeoutError is one
        raise ServerUnavailableError(
            f"Cannot reach {target.url}. Is it up? --url or MILLRACE_URL says where."
        ) from failure
    result = LoadResult()
    started_s = time.perf_counter()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for number in range(client_count):
                connection = first if number == 0 else None
                group.create_task(_run_client(target, connection, result, call_timeout_s))
    result.seconds = time.perf_counter() - started_s
    return result


async def _run_client(
    target: CallTarget,
    connection: LoadConnection | None,
    result: LoadResult,
    call_timeout_s: float,
) -> None:
    """Send calls until cancelled, and reconnect after a lost connection."""
    try:
        while True:
            error = ""
            try:
                async with asyncio.timeout(call_timeout_s):
                    if connection is None or not connection.is_open:
                        connection = await target.connect()
                    call = await connection.send(target.request)
                result.record_call(call)
                error = call.error
            except TimeoutError:
                error = "timeout"
                result.errors[error] += 1
                if connection is not None:
                    connection.close()
            except OSError:
                error = "cannot connect"
                result.errors[error] += 1
            if error:
                await asyncio.sleep(_PAUSE_S)
    finally:
        if connection is not None:
            connection.close()


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
