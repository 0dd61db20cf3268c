"""The places that a process promised to refused clients, by the `Retry-After` that it sent.

Official clients send the same request again after that time. A promise that nobody uses ends after
a grace period. Callers pass the time.
"""

from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

from core.overload.shedding import NONE_PROMISED, Promised, ShedClass

T = TypeVar("T")

_CLASSES: Final = len(ShedClass)


class RetryPromises(Generic[T]):
    """Promises by pool and client. `T` names a client: a retry has the same name."""

    def __init__(self, *, grace_s: float, count_max: int) -> None:
        """`count_max` limits the promises of all pools."""
        self._grace_s, self._count_max = grace_s, count_max
        self._dues: dict[tuple[str, T], list[tuple[float, ShedClass]]] = {}  # heaps
        self._ends: list[tuple[float, int, tuple[str, T]]] = []  # heap of when promises end
        self._counts: dict[str, list[int]] = {}
        self._number = 0  # breaks ties, so that clients are never compared
        self.count = 0

    def promised(self, pool: str, *, now_s: float) -> Promised:
        """Return the open promises of a pool, by class."""
        if not self._ends:
            return NONE_PROMISED
        self._end_unused(now_s)
        counts = self._counts.get(pool)
        return NONE_PROMISED if counts is None else (counts[0], counts[1], counts[2], counts[3])

    def is_due(self, pool: str, client: T, *, now_s: float) -> bool:
        """Whether a promise to the client is due."""
        if not self._ends:
            return False
        dues = self._dues.get((pool, client))
        return dues is not None and dues[0][0] <= now_s

    def add(self, pool: str, client: T, shed_class: ShedClass, due_s: float) -> bool:
        """Promise a place from `due_s` on; return False at the limit of promises."""
        if self.count >= self._count_max:
            return False
        key = (pool, client)
        heappush(self._dues.setdefault(key, []), (due_s, shed_class))
        self._number += 1
        heappush(self._ends, (due_s + self._grace_s, self._number, key))
        self._counts.setdefault(pool, [0] * _CLASSES)[shed_class] += 1
        self.count += 1
        return True

    def use(self, pool: str, client: T) -> None:
        """Use the oldest promise to a client, if there is one."""
        key = (pool, client)
        if key in self._dues:
            self._remove_first(key)

    def _end_unused(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] < now_s:
            _, _, key = heappop(self._ends)
            dues = self._dues.get(key)
            if dues is not None and dues[0][0] + self._grace_s < now_s:
                self._remove_first(key)

    def _remove_first(self, key: tuple[str, T]) -> None:
        dues = self._dues[key]
        _, shed_class = heappop(dues)
        if not dues:
            del self._dues[key]
        counts = self._counts[key[0]]
        counts[shed_class] -= 1
        self.count -= 1
        if not any(counts):
            del self._counts[key[0]]
