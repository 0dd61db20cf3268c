"""A priority queue whose priorities can change: a change costs O(log n)."""

import heapq
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
P = TypeVar("P", float, tuple[int, float], tuple[float, bool])

_STALE_ENTRIES_MAX: Final = 16
"""Stale heap entries tolerated in addition to one per key."""


class IndexedPriorityQueue(Generic[K, P]):
    """Keys by priority, the lowest first; equal priorities in insertion order.

    A heap entry that a change made stale is removed when it reaches the top, or when most entries
    are stale, so the heap stays proportional to the keys. Entries refer to keys by numbers, so a
    removed key is released at once.
    """

    __slots__ = ("_entries", "_heap", "_keys", "_number")

    def __init__(self) -> None:
        """Start empty."""
        self._heap: list[tuple[P, int]] = []
        self._entries: dict[K, tuple[P, int]] = {}
        self._keys: dict[int, K] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def priority(self, key: K) -> P:
        """Return the priority of a key in the queue."""
        return self._entries[key][0]

    def set_priority(self, key: K, priority: P) -> None:
        """Insert a key or change its priority."""
        known = self._entries.get(key)
        if known is None:
            self._number += 1
            number = self._number
            self._keys[number] = key
        elif known[0] == priority:
            return
        else:
            number = known[1]
        entry = self._entries[key] = (priority, number)
        heapq.heappush(self._heap, entry)
        self._compact()

    def remove(self, key: K) -> None:
        """Remove a key; an unknown key changes nothing."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            del self._keys[entry[1]]
            self._compact()

    def first(self) -> K:
        """Return the key of the lowest priority; the queue must not be empty."""
        while True:
            entry = self._heap[0]
            number = entry[1]
            if number in self._keys:
                key = self._keys[number]
                if self._entries[key] is entry:
                    return key
            heapq.heappop(self._heap)

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + _STALE_ENTRIES_MAX:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)
