"""Reads whose result many requests share for about a second."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from core.clock import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_BUSY_SHARE_MAX: Final = 20
"""A read that takes long is repeated after this many times its duration at the earliest, so one
kind of read costs at most a twentieth of a thread and of a core of Postgres."""

_FAILED_S: Final = 1.0
"""A failed read is repeated after this time, however long it took and results are kept."""


@dataclass(slots=True)
class _Entry(Generic[V]):
    reading: asyncio.Task[V]
    due_s: float = float("inf")  # while it is read


@dataclass(slots=True)
class SharedReads(Generic[K, V]):
    """One read at a time for each key. Used on the event loop."""

    read: Callable[[K], Awaitable[V]]
    clock: Clock
    age_s_max: float = 1.0
    keys_max: int = 1024  # the oldest is dropped
    _entries: dict[K, _Entry[V]] = field(default_factory=dict)
    _drop_at_s: float = float("-inf")

    async def get(self, key: K) -> V:
        """Return what `read(key)` returned lately, or returns now. Raises what it raises."""
        entry = self._entries.get(key)
        now_s = self.clock.monotonic_s()
        if entry is None or now_s >= entry.due_s:
            self._drop_due(now_s)
            self._entries.pop(key, None)
            entry = self._entries[key] = _Entry(asyncio.ensure_future(self._timed(key)))
            if len(self._entries) > self.keys_max:
                del self._entries[next(iter(self._entries))]
        return await asyncio.shield(entry.reading)

    def _drop_due(self, now_s: float) -> None:
        """Drop the results that are too old. Once in `age_s_max`: it looks at all of them."""
        if now_s >= self._drop_at_s:
            self._drop_at_s = now_s + self.age_s_max
            self._entries = {key: one for key, one in self._entries.items() if now_s < one.due_s}

    async def _timed(self, key: K) -> V:
        began_s = self.clock.monotonic_s()
        pause_s = _FAILED_S
        try:
            found = await self.read(key)
            pause_s = max(self.age_s_max, _BUSY_SHARE_MAX * (self.clock.monotonic_s() - began_s))
            return found
        finally:
            entry = self._entries.get(key)
            if entry is not None and entry.reading is asyncio.current_task():
                entry.due_s = self.clock.monotonic_s() + pause_s
