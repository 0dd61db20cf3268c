"""Publishes each second how busy this api process is (`RoleLoad` on `backlog`).

Work are the requests of all routes that began, waiting are the open online calls.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from core.clock import Clock
from core.runtime.process_load import LoadMeter
from topics.records.records import Record
from topics.records.scaling import RoleLoad

INTERVAL_S: Final = 1.0
ROLE: Final = "api"


class ApiLoadPublisher:
    """Counts requests and publishes the load of one process. Used on the event loop."""

    def __init__(
        self,
        process_id: str,
        clock: Clock,
        send: Callable[[bytes, Record], None],
        open_calls: Callable[[], int],
        *,
        is_needed: Callable[[], bool],
    ) -> None:
        """Nothing is sent while `is_needed()` is False; `send` gets the key and the record."""
        self._process_id, self._clock, self._send = process_id, clock, send
        self._open_calls, self._is_needed = open_calls, is_needed
        self._requests = 0  # since the last record
        self.meter = LoadMeter(clock.monotonic_s)

    def count_request(self) -> None:
        """Count a request of any route."""
        self._requests += 1

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            self.publish()

    def publish(self) -> None:
        """Send the load since the last record."""
        load, requests = self.meter.read(), self._requests
        self._requests = 0
        if not self._is_needed() or load.seconds <= 0:
            return
        record = RoleLoad(
            role=ROLE,
            process_id=self._process_id,
            at_s=self._clock.wall_s(),
            work_per_s=requests / load.seconds,
            waiting=float(self._open_calls()),
            busy=load.busy,
            loop_lag_s=load.loop_lag_s,
        )
        self._send(f"{ROLE}:{self._process_id}".encode(), record)
