"""Clients that are due a share of all tokens served, and which of them have had too little. Pure.

Each client has a tag: the number of tokens served to all at which its next service is due. Service
of `n` tokens moves it by `n / share`. A client with a tag below the tokens served is behind, and
the lowest tag is the most urgent one. A client that comes or returns starts at the tokens served,
so idle time earns nothing, and service beyond the share costs one service of it at most.

Source: the reservation tags of Gulati, Merchant and Varman, "mClock: Handling Throughput
Variability for Hypervisor IO Scheduling" (OSDI 2010), with tokens served instead of time.
"""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from batcher.policy.indexed_priority_queue import IndexedPriorityQueue

K = TypeVar("K", bound=Hashable)


class ReservedService(Generic[K]):
    """The active clients with a share. The shares add up to 1 at most."""

    def __init__(self) -> None:
        """Start without clients."""
        self._tokens = 0.0  # served to all while any client was active
        self._shares: dict[K, float] = {}  # of the active clients
        self._tags: IndexedPriorityQueue[K, float] = IndexedPriorityQueue()
        self._left: IndexedPriorityQueue[K, float] = IndexedPriorityQueue()

    def __len__(self) -> int:
        return len(self._shares)

    def __contains__(self, client: K) -> bool:
        return client in self._shares

    def __iter__(self) -> Iterator[K]:
        return iter(self._shares)

    def activate(self, client: K, share: float) -> None:
        """Add a client with work, or change its share."""
        if client not in self._shares:
            tag = self._left.priority(client) if client in self._left else 0.0
            self._left.remove(client)
            self._tags.set_priority(client, max(tag, self._tokens))
        self._shares[client] = share

    def deactivate(self, client: K) -> None:
        """Remove a client without work; what it had in advance is kept."""
        if client not in self._shares:
            return
        self._left.set_priority(client, self._tags.priority(client))
        self._tags.remove(client)
        del self._shares[client]
        while self._left and self._left.priority(self._left.first()) <= self._tokens:
            self._left.remove(self._left.first())

    def charge(self, client: K, tokens: float) -> None:
        """Charge an active client for a service, before it is counted by `count`.

        A negative number takes back what an estimate charged too much.
        """
        tag = self._tags.priority(client)
        start = min(tag, self._tokens) if tokens > 0 else tag
        self._tags.set_priority(client, start + tokens / self._shares[client])

    def count(self, tokens: float) -> None:
        """Count a service of any client, one without a share included."""
        self._tokens += tokens

    def tag(self, client: K) -> float:
        """Return the tag of an active client."""
        return self._tags.priority(client)

    def is_behind(self, client: K) -> bool:
        """Whether a client is active and had less than its share."""
        return client in self._shares and self._tags.priority(client) < self._tokens

    def most_behind(self) -> K | None:
        """Return the client with the lowest tag if it is behind, else None."""
        if not self._shares:
            return None
        client = self._tags.first()
        return client if self._tags.priority(client) < self._tokens else None
