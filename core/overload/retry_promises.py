"""The places that a process promised to refused clients, by the `Retry-After` that it sent.

Official clients send the same request again after that time. A promise that nobody uses ends after
a grace period. Callers pass the time.
"""

from collections import Counter
from heapq import heappop, heappush
from typing import Final, Generic, NamedTuple, TypeVar

from core.overload.shedding import NONE_PROMISED, Promised, ShedClass

T = TypeVar("T")

_CLASSES: Final = len(ShedClass)


class Client(NamedTuple, Generic[T]):
    """A request of a tenant. A retry has the same name."""

    tenant: T
    request: int  # a hash of the request


class RetryPromise(NamedTuple):
    """A place from `due_s` on, in the class that the client had when it was refused."""

    due_s: float
    shed_class: ShedClass


class RetryPromises(Generic[T]):
    """Promises by pool and client, at most one each. `T` names a tenant."""

    def __init__(self, *, grace_s: float, count_max: int) -> None:
        """`count_max` limits the promises of all pools."""
        self._grace_s, self._count_max = grace_s, count_max
        self._promises: dict[tuple[str, Client[T]], RetryPromise] = {}
        self._ends: list[tuple[float, int, tuple[str, Client[T]]]] = []  # heap of ends
        self._counts: dict[str, list[int]] = {}
        self._of_tenants: Counter[tuple[str, T]] = Counter()
        self._number = 0  # breaks ties, so that clients are never compared

    @property
    def count(self) -> int:
        """The open promises of all pools."""
        return len(self._promises)

    def promised(self, pool: str, *, now_s: float) -> Promised:
        """Return the open promises of a pool, by class."""
        self.end_unused(now_s)
        counts = self._counts.get(pool)
        return NONE_PROMISED if counts is None else (counts[0], counts[1], counts[2], counts[3])

    def of_tenant(self, pool: str, tenant: T) -> int:
        """Return the open promises of a tenant in a pool."""
        return self._of_tenants[pool, tenant]

    def find(self, pool: str, client: Client[T], *, now_s: float) -> RetryPromise | None:
        """Return the open promise to a client, due or not."""
        promise = self._promises.get((pool, client))
        is_open = promise is not None and now_s <= promise.due_s + self._grace_s
        return promise if is_open else None

    def due_class(self, pool: str, client: Client[T], *, now_s: float) -> ShedClass | None:
        """Return the class of the promise to a client that is due; None: there is none."""
        promise = self.find(pool, client, now_s=now_s)
        return None if promise is None or promise.due_s > now_s else promise.shed_class

    def add(self, pool: str, client: Client[T], shed_class: ShedClass, due_s: float) -> bool:
        """Promise a place from `due_s` on.

        Returns False at the limit of promises, and for a client that has one.
        """
        key = (pool, client)
        if self.count >= self._count_max or key in self._promises:
            return False
        self._promises[key] = RetryPromise(due_s, shed_class)
        self._number += 1
        heappush(self._ends, (due_s + self._grace_s, self._number, key))
        self._counts.setdefault(pool, [0] * _CLASSES)[shed_class] += 1
        self._of_tenants[pool, client.tenant] += 1
        return True

    def use(self, pool: str, client: Client[T]) -> None:
        """Use the promise to a client, if there is one."""
        key = (pool, client)
        if key in self._promises:
            self._remove(key)

    def end_unused(self, now_s: float) -> None:
        """End the promises whose grace period is over."""
        while self._ends and self._ends[0][0] < now_s:
            _, _, key = heappop(self._ends)
            promise = self._promises.get(key)
            if promise is not None and promise.due_s + self._grace_s < now_s:
                self._remove(key)

    def _remove(self, key: tuple[str, Client[T]]) -> None:
        pool, client = key
        counts = self._counts[pool]
        counts[self._promises.pop(key).shed_class] -= 1
        if not any(counts):
            del self._counts[pool]
        self._of_tenants[pool, client.tenant] -= 1
        if not self._of_tenants[pool, client.tenant]:
            del self._of_tenants[pool, client.tenant]
