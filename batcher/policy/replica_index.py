"""Finds the best replica of a pool without visiting all of them.

A binary heap with lazy refresh: a replica that changed is ranked again at the next search, and an
entry is checked only when it reaches the top. A search costs O(log n) for each change since the
last one, so a batch costs the same in a pool of 1,000 replicas as in one of ten.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Final

Rank = tuple[bool, bool, int]
"""The order of replicas, the best first; see `ReplicaCredit.rank`."""

_Entry = tuple[Rank, int, str]

RECHECK_S: Final = 0.02
"""Time until a replica without an available partition is checked again, if others have credit."""

_SUPERSEDED_MIN: Final = 64
"""Superseded entries that a heap may hold beyond one for each replica."""


class ReplicaIndex:
    """The replicas of one pool in the order in which they get batches.

    Of equal replicas the one that changed longest ago comes first.
    """

    def __init__(self, rank: Callable[[str, float], Rank | None]) -> None:
        """`rank` returns a replica's rank at a time, or None if it has no credit.

        Without a call of `mark_changed` a rank may only get worse.
        """
        self._rank = rank
        self._numbers = count()
        self._heap: list[_Entry] = []
        self._entries: dict[str, _Entry | None] = {}  # of each replica; None: not in the heap
        self._changed: dict[str, None] = {}  # in the order of the changes
        self._unusable: list[_Entry] = []  # taken out of the heap for a moment
        self._unusable_s = 0.0

    @property
    def replica_ids(self) -> frozenset[str]:
        """The replicas that a search considers."""
        return frozenset(self._entries)

    def mark_changed(self, replica_id: str) -> None:
        """Add a replica, or note that its rank may have changed."""
        self._entries.setdefault(replica_id, None)
        self._changed[replica_id] = None

    def discard(self, replica_id: str) -> None:
        """Remove a replica, if it is here."""
        self._entries.pop(replica_id, None)
        self._changed.pop(replica_id, None)

    def best(self, is_usable: Callable[[str], bool], *, now_s: float) -> str | None:
        """Return the first usable replica with credit, or None.

        `is_usable` may change at any time; a replica that becomes usable is found within
        `RECHECK_S`, or at once if no other one is usable.
        """
        self._rank_changed(now_s)
        if self._unusable and not 0 <= now_s - self._unusable_s < RECHECK_S:
            self._restore_unusable()
        found = self._first_usable(is_usable, now_s)
        if found is None and self._unusable:
            self._restore_unusable()
            found = self._first_usable(is_usable, now_s)
        return found

    def _rank_changed(self, now_s: float) -> None:
        for replica_id in self._changed:
            rank = self._rank(replica_id, now_s)
            self._entries[replica_id] = entry = (
                None if rank is None else (rank, next(self._numbers), replica_id)
            )
            if entry is not None:
                heappush(self._heap, entry)
        self._changed.clear()
        if len(self._heap) > 2 * len(self._entries) + _SUPERSEDED_MIN:
            self._heap = [entry for entry in self._entries.values() if entry is not None]
            heapify(self._heap)
            self._unusable.clear()

    def _first_usable(self, is_usable: Callable[[str], bool], now_s: float) -> str | None:
        heap = self._heap
        while heap:
            entry = heap[0]
            rank, _, replica_id = entry
            if self._entries.get(replica_id) is not entry:
                heappop(heap)  # superseded
                continue
            current = self._rank(replica_id, now_s)
            if current is None:
                self._entries[replica_id] = None
                heappop(heap)
            elif current != rank:
                self._entries[replica_id] = worse = (current, next(self._numbers), replica_id)
                heapreplace(heap, worse)
            elif is_usable(replica_id):
                return replica_id
            else:
                if not self._unusable:
                    self._unusable_s = now_s
                self._unusable.append(heappop(heap))
        return None

    def _restore_unusable(self) -> None:
        for entry in self._unusable:
            heappush(self._heap, entry)
        self._unusable.clear()
