"""Places in an engine, shared by bulk items and online calls.

An online call takes any free place and goes ahead of every bulk item; a bulk item starts only while
more than the headroom is free, so that the next online call finds a place.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """Who holds places now."""

    bulk: int
    online: int
    waiting: int  # online calls without a place
    idle: int = 0  # bulk items without a place, though there is room for them
    refused: int = 0  # what a busy upstream did not take since the start: a sign of life


def square_root_headroom(total: int) -> int:
    """Return the places that square-root staffing keeps for arrivals; 0 where there is only one."""
    return min(math.ceil(math.sqrt(total)), total - 1)


class EngineSlots:
    """Counts places of one engine on one event loop."""

    def __init__(self, total: int, headroom: int = 0, *, at_once: int | None = None) -> None:
        """Bulk alone holds at most `total - headroom`.

        `at_once` is how many of `total` the engine works on, online calls first: the others queue
        in it. Bulk queues there in proportion to what it has of these, so that no item waits for
        ever behind online calls while its time runs.
        """
        assert 0 <= headroom < total
        self.total = total
        self.headroom = headroom
        self.on_bulk_room: Callable[[], None] = _nothing
        """Called when online calls have left room in which bulk items may start."""
        self.bulk_waiting: Callable[[], int] = _none
        """Returns how many bulk items have no place."""
        self.refused_count = 0
        """See `SlotCounts.refused`."""
        self._free = total
        self._bulk_max = total - headroom
        self._at_once = total if at_once is None else min(at_once, total)
        self._bulk = self._online = 0
        self._waiting: dict[asyncio.Future[None], None] = {}  # oldest first

    @property
    def counts(self) -> SlotCounts:
        """Who holds places now."""
        idle = self.bulk_waiting() if self._bulk_room() > 0 else 0
        return SlotCounts(self._bulk, self._online, len(self._waiting), idle, self.refused_count)

    async def enter(self) -> None:
        """Take a place for an online call, in the order of arrival; each needs one `leave`."""
        if self._free:  # then nobody waits
            self._free -= 1
            self._online += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[place] = None
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._waiting.pop(place, None)  # a place given back may have passed it over
            else:  # the place came in the same turn
                self.leave()
            raise

    def leave(self) -> None:
        """Give back the place of an online call."""
        self._online -= 1
        self._give_back()
        if self._free > self.headroom:
            self.on_bulk_room()

    def take_bulk(self, wanted: int) -> int:
        """Take up to `wanted` places for bulk items; return how many it were."""
        taken = max(0, min(wanted, self._bulk_room()))
        self._free -= taken
        self._bulk += taken
        return taken

    def give_bulk(self, count: int) -> None:
        """Give back places of bulk items; whoever has more of them asks again."""
        self._bulk -= count
        for _ in range(count):
            self._give_back()

    def limit_bulk(self, count: int) -> None:
        """Let bulk start only while it holds fewer places than `count`."""
        self._bulk_max = count
        if self._bulk_room() > 0:
            self.on_bulk_room()

    def renew_bulk(self) -> bool:
        """Keep a place for the next bulk item; False when it had to be given back."""
        self.give_bulk(1)
        return self.take_bulk(1) == 1

    def _bulk_room(self) -> int:
        share = (self._at_once - self._online) * self.total // self._at_once
        return min(self._free - self.headroom, self._bulk_max - self._bulk, share - self._bulk)

    def _give_back(self) -> None:
        while self._waiting:
            place = next(iter(self._waiting))
            del self._waiting[place]
            if not place.done():  # done: its call was cancelled in this turn
                self._online += 1
                place.set_result(None)
                return
        self._free += 1


def _nothing() -> None:
    """Nobody has bulk items."""


def _none() -> int:
    """Nobody has bulk items."""
    return 0
