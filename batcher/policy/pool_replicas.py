"""The replicas of one pool, indexed by the model versions that they have warm.

A pool usually serves one version: then one index holds all replicas, and a search costs what it
did. Replicas with other versions are in other indexes, so work finds its replicas without visiting
those that must not run it.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from batcher.policy.hash_ring import HashRing
from batcher.policy.replica_index import Rank, ReplicaIndex
from topics.records.eligibility import is_served

Versions: TypeAlias = frozenset[str]
"""The versions of a replica; none: any."""

_CACHED_MAX: Final = 1_000
"""Versions whose indexes and rings are kept; then all are found again."""


class PoolReplicas:
    """The replicas that a search for the next batch considers."""

    def __init__(self, rank: Callable[[str, float], Rank | None]) -> None:
        """`rank`: see `ReplicaIndex`."""
        self._rank = rank
        self._versions: dict[str, Versions] = {}  # by replica
        self._indexes: dict[Versions, ReplicaIndex] = {}
        self._counts: dict[Versions, int] = {}
        self._eligible: dict[str, tuple[ReplicaIndex, ...]] = {}  # by required version
        self._rings: dict[str, HashRing] = {}  # by required version; empty: of all replicas

    @property
    def replica_ids(self) -> frozenset[str]:
        """All replicas."""
        return frozenset(self._versions)

    @property
    def indexes(self) -> tuple[ReplicaIndex, ...]:
        """The index of each set of versions."""
        return tuple(self._indexes.values())

    @property
    def has_rings(self) -> bool:
        """Whether loads are needed."""
        return bool(self._rings)

    def mark_changed(self, replica_id: str, versions: Versions) -> None:
        """Add a replica with its versions, or note that its rank may have changed."""
        known = self._versions.get(replica_id)
        if known is not versions and known != versions:
            if known is not None:
                self.discard(replica_id)
            self._add(replica_id, versions)
        self._indexes[versions].mark_changed(replica_id)

    def discard(self, replica_id: str) -> None:
        """Remove a replica, if it is here."""
        versions = self._versions.pop(replica_id, None)
        if versions is None:
            return
        self._indexes[versions].discard(replica_id)
        for ring in self._rings.values():
            ring.remove(replica_id)
        self._counts[versions] -= 1
        if not self._counts[versions]:
            del self._indexes[versions], self._counts[versions]
            self._forget_found()

    def eligible(self, version: str) -> tuple[ReplicaIndex, ...]:
        """Return the indexes of the replicas that may run work that needs `version`."""
        found = self._eligible.get(version)
        if found is None:
            if len(self._eligible) >= _CACHED_MAX:
                self._forget_found()
            found = self._eligible[version] = tuple(
                index for versions, index in self._indexes.items() if is_served(version, versions)
            )
        return found

    def ring(self, version: str) -> tuple[HashRing, list[str]]:
        """Return the ring of the eligible replicas, and those to add to it because it is new.

        The caller sets their loads. In a pool of one version all work has the same ring.
        """
        key = version if len(self._indexes) > 1 else ""
        ring = self._rings.get(key)
        if ring is not None:
            return ring, []
        ring = self._rings[key] = HashRing()
        return ring, sorted(
            replica_id
            for replica_id, versions in self._versions.items()
            if not key or is_served(version, versions)
        )

    def set_load(self, replica_id: str, load: int, weight: int) -> None:
        """Set the load of a replica on every ring that has it."""
        versions = self._versions.get(replica_id)
        if versions is None:
            return
        for key, ring in self._rings.items():
            if not key or is_served(key, versions):
                ring.set_load(replica_id, load, weight)

    def _add(self, replica_id: str, versions: Versions) -> None:
        self._versions[replica_id] = versions
        self._counts[versions] = self._counts.get(versions, 0) + 1
        if versions not in self._indexes:
            self._indexes[versions] = ReplicaIndex(self._rank)
            self._forget_found()

    def _forget_found(self) -> None:
        """Find indexes and rings again: the sets of versions have changed."""
        self._eligible.clear()
        self._rings.clear()
