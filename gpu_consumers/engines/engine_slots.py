"""Execution slots of an engine, shared by bulk items and online calls.

An online call takes any free slot, ahead of every bulk item. A bulk item starts only while more
slots than the headroom are free, so that the next online call finds one.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

from gpu_consumers.engines.engine import (
    EmitEvent,
    EngineAnswer,
    EngineUse,
    SlotCounts,
    UsageMeter,
)


def square_root_headroom(total: int) -> int:
    """Return the slots that square-root staffing reserves for arrivals; 0 of a single slot."""
    return min(math.ceil(math.sqrt(total)), total - 1)


class EngineSlots:
    """The slots of one engine on one event loop."""

    def __init__(self, total: int, headroom: int = 0, *, running_max: int | None = None) -> None:
        """Bulk holds at most `total - headroom` slots.

        `running_max` of the `total` run in the engine at once, online calls first; the others queue
        inside it. Bulk queues there in proportion to what it may run, so that no item waits behind
        online calls until it times out.
        """
        assert 0 <= headroom < total
        self.total = total
        self.headroom = headroom
        self.on_bulk_available: Callable[[], None] = lambda: None
        """Called when bulk items may start in slots that online calls released."""
        self.on_online_waiting: Callable[[], None] = lambda: None
        """Called when an online call finds no free slot."""
        self.count_waiting_bulk: Callable[[], int] = lambda: 0
        """Returns how many bulk items have no slot."""
        self.refused_count = 0
        """See `SlotCounts.refused`."""
        self._free = total
        self._bulk_max = total - headroom
        self._running_max = total if running_max is None else min(running_max, total)
        self._bulk = self._online = 0
        self._waiting: dict[asyncio.Future[None], None] = {}  # oldest first

    @property
    def counts(self) -> SlotCounts:
        """Slots in use, and what waits for one."""
        idle = self.count_waiting_bulk() if self._bulk_available() > 0 else 0
        return SlotCounts(self._bulk, self._online, len(self._waiting), idle, self.refused_count)

    @property
    def waiting_count(self) -> int:
        """Bulk items and online calls without a slot."""
        return self.count_waiting_bulk() + len(self._waiting)

    @property
    def used_share(self) -> float:
        """The part of the slots that is in use, 0 to 1."""
        return (self.total - self._free) / self.total

    async def acquire_online(self) -> None:
        """Acquire a slot for an online call, in order of arrival; pair with `release_online`."""
        if self._free:  # then no call waits
            self._free -= 1
            self._online += 1
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[granted] = None
        self.on_online_waiting()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._waiting.pop(granted, None)  # `_release` may have skipped it already
            else:  # the slot was granted in the same iteration of the loop
                self.release_online()
            raise

    def release_online(self) -> None:
        """Release the slot of an online call."""
        self._online -= 1
        self._release()
        if self._free > self.headroom:
            self.on_bulk_available()

    def acquire_bulk(self, requested: int) -> int:
        """Acquire up to `requested` slots for bulk items; return how many were acquired."""
        acquired = max(0, min(requested, self._bulk_available()))
        self._free -= acquired
        self._bulk += acquired
        return acquired

    def release_bulk(self, count: int) -> None:
        """Release slots of bulk items; a caller with more items acquires again."""
        self._bulk -= count
        for _ in range(count):
            self._release()

    def set_bulk_limit(self, count: int) -> None:
        """Let bulk items start only while they hold fewer slots than `count`."""
        self._bulk_max = count
        if self._bulk_available() > 0:
            self.on_bulk_available()

    def reacquire_bulk(self) -> bool:
        """Reuse a slot for the next bulk item; False if it had to be released."""
        self.release_bulk(1)
        return self.acquire_bulk(1) == 1

    def _bulk_available(self) -> int:
        share = (self._running_max - self._online) * self.total // self._running_max
        return min(self._free - self.headroom, self._bulk_max - self._bulk, share - self._bulk)

    def _release(self) -> None:
        while self._waiting:
            granted = next(iter(self._waiting))
            del self._waiting[granted]
            if not granted.done():  # done: its call was cancelled in this iteration of the loop
                self._online += 1
                granted.set_result(None)
                return
        self._free += 1


class SlottedEngine(ABC):
    """The part of an `Engine` that follows from its slots; by default it starts nothing."""

    def __init__(self, slots: EngineSlots) -> None:
        self._use_slots(slots)

    def _use_slots(self, slots: EngineSlots) -> None:
        self._slots = slots
        self.concurrency, self.headroom = slots.total, slots.headroom

    @property
    def bulk_concurrency(self) -> int:
        """See `Engine`."""
        return self.concurrency - self.headroom

    @property
    def slots(self) -> SlotCounts:
        """See `Engine`."""
        return self._slots.counts

    @property
    def use(self) -> EngineUse:
        """See `ReportsUse`; what has no slot waits."""
        return EngineUse(self._slots.waiting_count)

    @property
    def engine_hash(self) -> str:
        """See `Engine`."""
        return ""

    @property
    def adapters(self) -> Collection[str]:
        """See `Engine`."""
        return ()

    async def start(self) -> None:  # noqa: B027  most engines start nothing
        """See `Engine`."""

    async def stop(self) -> None:  # noqa: B027  nor do they stop anything
        """See `Engine`."""

    async def serve(
        self,
        endpoint: str,
        body: bytes,
        emit: EmitEvent | None,
        meter: UsageMeter | None = None,
        adapter: str = "",
    ) -> EngineAnswer:
        """See `Engine`."""
        await self._slots.acquire_online()
        try:
            if meter is not None:
                meter.on_start()
            return await self._serve(endpoint, body, emit, meter, adapter)
        finally:
            self._slots.release_online()

    @abstractmethod
    async def _serve(
        self,
        endpoint: str,
        body: bytes,
        emit: EmitEvent | None,
        meter: UsageMeter | None,
        adapter: str,
    ) -> EngineAnswer:
        """Run one online call, which has a slot. Cancelling and errors: see `Engine.serve`."""


def scheduler_priority(requested: int, *, is_bulk: bool, is_large: bool = False) -> int:
    """Return the priority for vLLM's scheduler; lower is earlier.

    Online calls are equal and ahead of every item: a requested priority would delay the calls of
    other clients. Only a large one, of many sequences, is behind the others. Items keep their
    requested order among themselves.
    """
    return max(requested, 0) + 2 if is_bulk else int(is_large)
