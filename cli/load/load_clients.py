"""Clients that call one after the other for a while, and what they saw."""

import asyncio
import math
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from cli.exits import CommandError
from cli.load.load_connection import LoadConnection, LoadTarget, TimedCall

_PAUSE_S = 0.2
"""After a failed call: a server that refuses at once must not be hammered."""


class ServerUnavailableError(CommandError):
    """The server does not answer."""


@dataclass(slots=True)
class LoadResult:
    """What all clients saw until the time was over."""

    seconds: float = 0.0
    latencies_s: "array[float]" = field(default_factory=lambda: array("d"))
    first_waits_s: "array[float]" = field(default_factory=lambda: array("d"))
    event_count: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def take(self, call: TimedCall) -> None:
        """Count an ended call."""
        self.event_count += call.event_count
        if call.error:
            self.errors[call.error] += 1
            return
        self.latencies_s.append(call.latency_s)
        self.first_waits_s.append(call.first_wait_s)

    @property
    def calls_per_s(self) -> float:
        """Calls that were answered well, a second."""
        return len(self.latencies_s) / self.seconds


async def run_load(
    target: LoadTarget, *, client_count: int, seconds: float, call_timeout_s: float
) -> LoadResult:
    """Let clients call for `seconds`; calls that then still run are cut and not counted.

    Raises ServerUnavailableError when there is no connection at the beginning.
    """
    try:
        async with asyncio.timeout(call_timeout_s):
            first = await target.connect()
    except OSError as failure:  # TimeoutError is one
        raise ServerUnavailableError(
            f"Cannot reach {target.url}. Is it up? --url or MILLRACE_URL says where."
        ) from failure
    seen = LoadResult()
    began_s = time.perf_counter()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for number in range(client_count):
                connection = first if number == 0 else None
                group.create_task(_repeat_calls(target, connection, seen, call_timeout_s))
    seen.seconds = time.perf_counter() - began_s
    return seen


async def _repeat_calls(
    target: LoadTarget, connection: LoadConnection | None, seen: LoadResult, call_timeout_s: float
) -> None:
    """Call until cancelled, over a new connection whenever the old one is gone."""
    try:
        while True:
            error = ""
            try:
                async with asyncio.timeout(call_timeout_s):
                    if connection is None or not connection.is_open:
                        connection = await target.connect()
                    call = await connection.ask(target.request)
                seen.take(call)
                error = call.error
            except TimeoutError:
                error = "timeout"
                seen.errors[error] += 1
                if connection is not None:
                    connection.close()
            except OSError:
                error = "cannot connect"
                seen.errors[error] += 1
            if error:
                await asyncio.sleep(_PAUSE_S)
    finally:
        if connection is not None:
            connection.close()


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
