"""Who is served next: virtual token counters, at two levels (tenant, then job).

Source: Sheng et al., "Fairness in Serving Large Language Models" (VTC, OSDI 2024).
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from batcher.policy.indexed_priority_queue import IndexedPriorityQueue

K = TypeVar("K", bound=Hashable)


class VirtualCounters(Generic[K]):
    """Tokens served to each client over its weight; the lowest active one is next.

    A client that comes back starts no lower than the level of those that were served meanwhile,
    so an idle time earns no credit. What left above the level is remembered, so that leaving and
    coming back pays no debt either.
    """

    def __init__(self) -> None:
        """Know nobody."""
        self._active: IndexedPriorityQueue[K, float] = IndexedPriorityQueue()
        self._left: IndexedPriorityQueue[K, float] = IndexedPriorityQueue()
        self._level = 0.0

    def __len__(self) -> int:
        return len(self._active)

    def __contains__(self, client: K) -> bool:
        return client in self._active

    def counter(self, client: K) -> float:
        """Return the counter of an active client."""
        return self._active.place(client)

    def activate(self, client: K) -> None:
        """The client has work; one that is active stays as it is."""
        if client in self._active:
            return
        left_at = self._left.place(client) if client in self._left else 0.0
        self._left.remove(client)
        self._active.put(client, max(left_at, self._level))

    def deactivate(self, client: K) -> None:
        """The client has no work left."""
        if client not in self._active:
            return
        left_at = self._active.place(client)
        self._active.remove(client)
        # The last one to leave sets the level: whoever comes next is its equal.
        self._level = max(self._level, self._lowest(self._active) if self._active else left_at)
        self._left.put(client, left_at)
        while self._left and self._lowest(self._left) <= self._level:
            self._left.remove(self._left.first())

    def charge(self, client: K, token_count: int, weight: float = 1.0) -> None:
        """The active client was served `token_count` tokens; each service costs at least one."""
        self._active.put(client, self._active.place(client) + max(1, token_count) / weight)
        self._level = max(self._level, self._lowest(self._active))

    def lowest(self, clients: Iterable[K]) -> K:
        """Return the one of these active clients that was served least; ties in their order."""
        return min(clients, key=self._active.place)

    def next(self) -> K:
        """Return the active client that was served least."""
        return self._active.first()

    @staticmethod
    def _lowest(clients: IndexedPriorityQueue[K, float]) -> float:
        return clients.place(clients.first())
