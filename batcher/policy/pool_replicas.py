"""The replicas of one pool, indexed by the models that they can run.

A pool usually serves one version: then one index holds all replicas, and a search costs what it
did. Replicas with other models are in other indexes, so work finds its replicas without visiting
those that must not run it.
"""

from collections.abc import Callable
from typing import Final

from batcher.policy.hash_ring import HashRing
from batcher.policy.replica_index import Rank, ReplicaIndex
from topics.records.eligibility import RequiredModel, RunnableModels, is_eligible, may_be_listed

_CACHED_MAX: Final = 1_000
"""Required models whose indexes and rings are kept; then all are found again."""

_LISTED_MAX: Final = 1_000
"""Versions of a pool that are remembered as listed; the oldest are forgotten."""


class PoolReplicas:
    """The replicas that a search for the next batch considers."""

    def __init__(self, rank: Callable[[str, float], Rank | None]) -> None:
        """`rank`: see `ReplicaIndex`."""
        self._rank = rank
        self._models: dict[str, RunnableModels] = {}  # by replica
        self._indexes: dict[RunnableModels, ReplicaIndex] = {}
        self._counts: dict[RunnableModels, int] = {}
        self._listed: dict[str, None] = {}  # versions that a replica has listed, the newest last
        self._eligible: dict[RequiredModel, tuple[ReplicaIndex, ...]] = {}
        self._rings: dict[RequiredModel | None, HashRing] = {}  # None: of all replicas

    @property
    def replica_ids(self) -> frozenset[str]:
        """All replicas."""
        return frozenset(self._models)

    @property
    def indexes(self) -> tuple[ReplicaIndex, ...]:
        """The index of each set of models."""
        return tuple(self._indexes.values())

    @property
    def has_rings(self) -> bool:
        """Whether loads are needed."""
        return bool(self._rings)

    def mark_changed(self, replica_id: str, models: RunnableModels) -> None:
        """Add a replica with its models, or note that its rank may have changed."""
        known = self._models.get(replica_id)
        if known is not models and known != models:
            if known is not None:
                self.discard(replica_id)
            self._add(replica_id, models)
        self._indexes[models].mark_changed(replica_id)

    def discard(self, replica_id: str) -> None:
        """Remove a replica, if it is here."""
        models = self._models.pop(replica_id, None)
        if models is None:
            return
        self._indexes[models].discard(replica_id)
        for ring in self._rings.values():
            ring.remove(replica_id)
        self._counts[models] -= 1
        if not self._counts[models]:
            del self._indexes[models], self._counts[models]
            self._forget_found()

    def eligible(self, required: RequiredModel) -> tuple[ReplicaIndex, ...]:
        """Return the indexes of the replicas that may run work that needs a model."""
        found = self._eligible.get(required)
        if found is None:
            if len(self._eligible) >= _CACHED_MAX:
                self._forget_found()
            is_listed = self._is_listed(required)
            found = self._eligible[required] = tuple(
                index
                for models, index in self._indexes.items()
                if is_eligible(required, models, is_listed=is_listed)
            )
        return found

    def ring(self, required: RequiredModel) -> tuple[HashRing, list[str]]:
        """Return the ring of the eligible replicas, and those to add to it because it is new.

        The caller sets their loads. In a pool with one set of models all work has the same ring.
        """
        key = required if len(self._indexes) > 1 else None
        ring = self._rings.get(key)
        if ring is not None:
            return ring, []
        ring = self._rings[key] = HashRing()
        return ring, sorted(
            replica_id for replica_id, models in self._models.items() if self._is_on(key, models)
        )

    def set_load(self, replica_id: str, load: int, weight: int) -> None:
        """Set the load of a replica on every ring that has it."""
        models = self._models.get(replica_id)
        if models is None:
            return
        for key, ring in self._rings.items():
            if self._is_on(key, models):
                ring.set_load(replica_id, load, weight)

    def _is_on(self, key: RequiredModel | None, models: RunnableModels) -> bool:
        """Return whether replicas with these models are on the ring of a key."""
        return key is None or is_eligible(key, models, is_listed=self._is_listed(key))

    def _is_listed(self, required: RequiredModel) -> bool:
        return may_be_listed(
            required.version,
            was_listed=required.version in self._listed,
            pool_lists=any(models.versions for models in self._indexes),
        )

    def _add(self, replica_id: str, models: RunnableModels) -> None:
        self._models[replica_id] = models
        self._counts[models] = self._counts.get(models, 0) + 1
        if models not in self._indexes:
            self._indexes[models] = ReplicaIndex(self._rank)
            self._listed |= dict.fromkeys(models.versions)
            while len(self._listed) > _LISTED_MAX:
                del self._listed[next(iter(self._listed))]
            self._forget_found()

    def _forget_found(self) -> None:
        """Find indexes and rings again: the sets of models have changed."""
        self._eligible.clear()
        self._rings.clear()
