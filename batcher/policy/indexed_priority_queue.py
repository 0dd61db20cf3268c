"""Who comes first among many whose places change all the time: a change costs log n, not n."""

import heapq
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
P = TypeVar("P", float, tuple[int, float])

_VOID_MAX: Final = 16
"""Void entries that are tolerated beside as many as there are clients."""


class IndexedPriorityQueue(Generic[K, P]):
    """Clients by their places, the lowest first; equals in the order in which they came.

    An entry that a change made void leaves the heap when it comes up, or when most are void: the
    heap is bounded by the clients. It names them by numbers, so one that left is free at once.
    """

    __slots__ = ("_clients", "_entries", "_heap", "_number")

    def __init__(self) -> None:
        """Know nobody."""
        self._heap: list[tuple[P, int]] = []
        self._entries: dict[K, tuple[P, int]] = {}
        self._clients: dict[int, K] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, client: K) -> bool:
        return client in self._entries

    def place(self, client: K) -> P:
        """Return the place of a client that is here."""
        return self._entries[client][0]

    def put(self, client: K, place: P) -> None:
        """A client comes, or moves to another place."""
        known = self._entries.get(client)
        if known is None:
            self._number += 1
            number = self._number
            self._clients[number] = client
        elif known[0] == place:
            return
        else:
            number = known[1]
        entry = self._entries[client] = (place, number)
        heapq.heappush(self._heap, entry)
        self._sweep()

    def remove(self, client: K) -> None:
        """A client leaves; one that is not here changes nothing."""
        entry = self._entries.pop(client, None)
        if entry is not None:
            del self._clients[entry[1]]
            self._sweep()

    def first(self) -> K:
        """Return the client of the lowest place; there must be one."""
        while True:
            entry = self._heap[0]
            number = entry[1]
            if number in self._clients:
                client = self._clients[number]
                if self._entries[client] is entry:
                    return client
            heapq.heappop(self._heap)

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + _VOID_MAX:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)
