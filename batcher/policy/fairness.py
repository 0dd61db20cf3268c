"""Fair scheduling by virtual token counters, at two levels (tenant, then job).

Source: Sheng et al., "Fairness in Serving Large Language Models" (VTC, OSDI 2024).
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeAlias, TypeVar

from batcher.policy.indexed_priority_queue import IndexedPriorityQueue

K = TypeVar("K", bound=Hashable)

Place: TypeAlias = tuple[float, bool]
"""The place of an active client: its counter, and whether it was charged since it came."""


def service_cost(tokens: float, weight: int = 1) -> float:
    """Return what a service of so many weighted tokens costs a client of this weight.

    A client of twice the weight is charged half, so it gets twice as much (4.3). A service costs at
    least one token.
    """
    return max(1.0, tokens) / max(1, weight)


class VirtualCounters(Generic[K]):
    """Tokens served to each client, divided by its weight; the lowest active client is next.

    A client that comes or returns starts no lower than the lowest active one, or the last that left
    (Algorithm 2), so idle time earns no credit. A counter above that level is kept when its client
    leaves, so leaving and returning cancels no debt either. Of equal counters, those of clients
    without service since they came are first, in the order in which they came: a client that comes
    waits for no further turn of one that is served all the time. After its turn it is above that
    one, also if it leaves and returns, so each client goes first in this way once at most.
    """

    def __init__(self) -> None:
        """Start without clients."""
        self._active: IndexedPriorityQueue[K, Place] = IndexedPriorityQueue()
        self._inactive: IndexedPriorityQueue[K, float] = IndexedPriorityQueue()
        self._expected: dict[K, float] = {}  # clients with work that has not been read again yet
        self._level = 0.0

    def __len__(self) -> int:
        return len(self._active)

    def __contains__(self, client: K) -> bool:
        return client in self._active

    def counter(self, client: K) -> float:
        """Return the counter of an active client."""
        return self._active.priority(client)[0]

    def place(self, client: K) -> Place:
        """Return the place of an active client in the order; the lowest is next."""
        return self._active.priority(client)

    def activate(self, client: K, lead: float = 0.0) -> None:
        """Add a client with work, so far above the lowest active one; an active one is unchanged.

        `lead` is that of a client which other counters had, and negative if it was behind.
        """
        if client in self._active:
            return
        if client in self._expected:
            self._active.set_priority(client, (self._expected.pop(client), False))
            return
        counter = self._inactive.priority(client) if client in self._inactive else 0.0
        self._inactive.remove(client)
        self._active.set_priority(client, (max(counter, self._floor() + lead), False))

    def deactivate(self, client: K) -> None:
        """Remove a client without work."""
        if client not in self._active:
            return
        counter = self.counter(client)
        self._active.remove(client)
        # The last client to leave sets the level: the next one starts equal to it.
        self._level = max(self._level, self._lowest() if self._active else counter)
        self._inactive.set_priority(client, counter)
        while self._inactive:
            lowest = self._inactive.first()
            if self._inactive.priority(lowest) > self._level:
                break
            self._inactive.remove(lowest)

    def leave(self, client: K) -> float:
        """Remove an active client; return its counter above the lowest of the others, or below."""
        counter = self.counter(client)
        self.deactivate(client)
        return counter - self._floor()

    def charge(self, client: K, service: float) -> None:
        """Charge an active client; see `service_cost`."""
        self._active.set_priority(client, (self.counter(client) + service, True))
        self._level = max(self._level, self._lowest())

    def charge_if_known(self, client: K, service: float) -> bool:
        """Charge a client, unless it never came or was forgotten; return whether it is known."""
        if client in self._active:
            self.charge(client, service)
        elif client in self._inactive:
            self._inactive.set_priority(client, self._inactive.priority(client) + service)
        elif client in self._expected:
            self._expected[client] += service
        else:
            return False
        return True

    @property
    def expects_clients(self) -> bool:
        """Whether restored clients with work have not come yet."""
        return bool(self._expected)

    def lead(self, client: K) -> float:
        """Return a client's counter above the lowest active one; 0 for an unknown client."""
        floor = self._floor()
        if client in self._active:
            return max(0.0, self.counter(client) - floor)
        if client in self._inactive:
            return max(0.0, self._inactive.priority(client) - floor)
        return max(0.0, self._expected.get(client, floor) - floor)

    def restore(self, client: K, lead: float, *, has_work: bool) -> None:
        """Set the lead of a client that an earlier process served; an active one is unchanged.

        One with work comes at its counter, also below others: it has waited all the time.
        """
        if client in self._active:
            return
        counter = self._floor() + lead
        if has_work:
            self._expected[client] = counter
        elif lead > 0:
            self._inactive.set_priority(client, counter)

    def end_restore(self) -> None:
        """Treat the restored clients that have not come as clients without work."""
        for client, counter in self._expected.items():
            if counter > self._level:
                self._inactive.set_priority(client, counter)
        self._expected.clear()

    def least_served(self) -> K:
        """Return the active client that is next: O(log n)."""
        return self._active.first()

    def least_served_of(self, clients: Iterable[K]) -> K:
        """Return which of these active clients is next; the first one of equals."""
        return min(clients, key=self._active.priority)

    def _floor(self) -> float:
        """Return the lowest counter at which a client may come."""
        return self._lowest() if self._active else self._level

    def _lowest(self) -> float:
        return self.counter(self._active.first())
