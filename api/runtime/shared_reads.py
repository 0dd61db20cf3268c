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

    async def get(self, key: K) -> V:
        """Return what `read(key)` returned lately, or returns now. Raises what it raises."""
        entry = self._entries.get(key)
        if entry is None or self.clock.monotonic_s() >= entry.due_s:
            self._entries.pop(key, None)
            entry = self._entries[key] = _Entry(asyncio.ensure_future(self._timed(key)))
            if len(self._entries) > self.keys_max:
                del self._entries[next(iter(self._entries))]
        return await asyncio.shield(entry.reading)

    async def _timed(self, key: K) -> V:
        began_s = self.clock.monotonic_s()
        try:
            return await self.read(key)
        finally:
            entry = self._entries.get(key)
            now_s = self.clock.monotonic_s()
            if entry is not None and entry.reading is asyncio.current_task():
                pause_s = _BUSY_SHARE_MAX * (now_s - began_s)
                entry.due_s = now_s + max(self.age_s_max, pause_s)
