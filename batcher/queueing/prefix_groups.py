"""The prefix groups of a job that wait, and the order in which a batch takes their chunks.

Within the turn of its tenant a batch takes a run of one group, then groups of the same replica.
"""

from typing import Final
from uuid import UUID

from batcher.policy.hash_ring import HashRing, hash_key
from batcher.policy.indexed_priority_queue import IndexedPriorityQueue
from batcher.policy.prefix_affinity import PASSES_MAX
from batcher.queueing.buffered_chunk import BufferedChunk

_NEW_MIN: Final = 64
"""New groups, some of which may have left, that are always kept."""


class PrefixGroups:
    """The chunks of a job that have a prefix group, by group, and the groups by replica."""

    __slots__ = ("_chunks", "_job_id", "_keys", "_new", "_owned", "_owners", "_passes", "_version")

    def __init__(self, job_id: UUID) -> None:
        """Start empty."""
        self._job_id = job_id
        self._chunks: dict[int, IndexedPriorityQueue[BufferedChunk, float]] = {}
        self._keys: dict[int, int] = {}  # places on the ring
        self._owners: dict[int, str] = {}  # of groups
        self._owned: dict[str, dict[int, None]] = {}  # groups of replicas, those that came first
        self._new: list[int] = []  # groups that may have no owner yet
        self._version = 0  # of the ring, when owners were found
        self._passes = 0  # batches that went before the first group

    def __len__(self) -> int:
        return len(self._chunks)

    def add(self, chunk: BufferedChunk) -> None:
        """Add a chunk."""
        group = chunk.prefix_group
        chunks = self._chunks.get(group)
        if chunks is None:
            chunks = self._chunks[group] = IndexedPriorityQueue()
            self._keys[group] = hash_key(self._job_id.bytes, b"%d" % group)
            self._new.append(group)
            if len(self._new) > 2 * len(self._keys) + _NEW_MIN:  # no batch has searched for long
                self._new = [group for group in self._keys if group not in self._owners]
        chunks.set_priority(chunk, chunk.position)

    def remove(self, chunk: BufferedChunk) -> None:
        """Remove a chunk."""
        group = chunk.prefix_group
        chunks = self._chunks[group]
        chunks.remove(chunk)
        if not chunks:
            del self._chunks[group], self._keys[group]
            if (owner := self._owners.pop(group, None)) is not None:
                del self._owned[owner][group]

    def key(self, group: int) -> int:
        """Return the place of a waiting group on the ring."""
        return self._keys[group]

    def first_of(self, group: int) -> BufferedChunk | None:
        """Return the first chunk of a group, if one waits."""
        chunks = self._chunks.get(group)
        return None if chunks is None else chunks.first()

    def owned_by(self, replica_id: str, ring: HashRing) -> int | None:
        """Return a waiting group of a replica, if one may go before the first group of the job."""
        if self._passes >= PASSES_MAX:
            return None
        self._find_owners(ring)
        return next(iter(self._owned.get(replica_id, ())), None)

    def record_run(self, first: int, group: int) -> None:
        """Count the batches of other groups that go before `first`."""
        self._passes = self._passes + 1 if group != first else 0

    def _find_owners(self, ring: HashRing) -> None:
        if ring.version != self._version:
            self._version = ring.version
            self._owners.clear()
            self._owned.clear()
            self._new = list(self._keys)
        for group in self._new:
            key = self._keys.get(group)
            if key is not None and (owner := ring.primary(key)) is not None:
                self._owners[group] = owner
                self._owned.setdefault(owner, {})[group] = None
        self._new.clear()
