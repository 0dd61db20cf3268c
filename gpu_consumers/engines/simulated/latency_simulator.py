"""Delays bulk items by a set latency: one timer serves all items that get a slot together."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.errors import MillraceError
from gpu_consumers.engines.engine import OnAnswer
from gpu_consumers.engines.engine_slots import EngineSlots

ReportItems = Callable[[str, Sequence[bytes], OnAnswer, range], None]
"""Answers those bodies of an `execute` that are in the range. May raise a MillraceError."""


@dataclass(slots=True, eq=False)
class _Call:
    """One `execute`."""

    endpoint: str
    bodies: Sequence[bytes]
    finished: OnAnswer
    done: asyncio.Future[None]
    started: int = 0  # items before this index have a slot or have ended
    ended: int = 0


class LatencySimulator:
    """Keeps items of concurrent calls in the bulk slots for the latency, oldest call first."""

    def __init__(self, report: ReportItems, slots: EngineSlots, latency_s: float) -> None:
        """`report` is called when the latency of a range of items is over."""
        self._report, self._slots, self._latency_s = report, slots, latency_s
        slots.on_bulk_available = self._fill_slots
        self._waiting: deque[_Call] = deque()  # calls with items that have no slot yet

    async def execute(self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer) -> None:
        """Run every body; raise what `report` raised."""
        if not bodies:
            return
        done = asyncio.get_running_loop().create_future()
        call = _Call(endpoint, bodies, finished, done)
        self._waiting.append(call)
        self._fill_slots()
        try:
            await done
        finally:
            self._release(call)

    def _fill_slots(self) -> None:
        """Give free slots to waiting calls, oldest first."""
        while self._waiting:
            call = self._waiting[0]
            start = call.started
            acquired = self._slots.acquire_bulk(len(call.bodies) - start)
            if not acquired:
                return
            call.started += acquired
            if call.started == len(call.bodies):
                self._waiting.popleft()
            loop = asyncio.get_running_loop()
            loop.call_later(self._latency_s, self._finish, call, range(start, call.started))

    def _finish(self, call: _Call, items: range) -> None:
        if call.done.done():  # cancelled or failed: its slots were released
            return
        self._slots.release_bulk(len(items))
        call.ended += len(items)
        try:
            self._report(call.endpoint, call.bodies, call.finished, items)
        except MillraceError as failure:  # injected; it fails the call
            call.done.set_exception(failure)
        else:
            if call.ended == len(call.bodies):
                call.done.set_result(None)
        self._fill_slots()

    def _release(self, call: _Call) -> None:
        """Release the slots of a cancelled or failed call."""
        self._slots.release_bulk(call.started - call.ended)
        call.ended = call.started
        if call in self._waiting:
            self._waiting.remove(call)
        self._fill_slots()
