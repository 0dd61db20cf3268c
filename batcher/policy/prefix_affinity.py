"""Which replica gets a prefix group: the one whose cache holds the prefix, while loads allow. Pure.

A group belongs to the replica that consistent hashing with bounded loads names, so every batcher
names the same one while loads are even. Locality yields to work: no batch waits for its replica.
Source: DLPM, "Locality-aware Fair Scheduling in LLM Serving" (Cao et al., 2025), for the order of
the two within a tenant's turn.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from batcher.policy.hash_ring import HashRing

SUCCESSORS_MAX: Final = 4
"""Replicas behind the owner of the first group that are tried before any other."""

PASSES_MAX: Final = 16
"""Batches that may go before the first group of a job; then it goes to any replica."""


class Placement(NamedTuple):
    """A group and the replica that it goes to."""

    group: int
    replica_id: str


def place_group(
    ring: HashRing,
    first: tuple[int, int],
    best: str,
    *,
    is_free: Callable[[str], bool],
    owned_by: Callable[[str], int | None],
) -> Placement:
    """Return the group that goes next, and its replica.

    `first` is the first group of the job and its place on the ring; `best` is the replica that gets
    a batch without a group; `owned_by` returns a waiting group of a replica that may go before the
    first. The first group goes to its owner if that is free. Else a group of the best replica goes,
    and else the first one to a free replica behind its owner, or to the best one.
    """
    group, key = first
    owner = ring.owner(key)
    if owner is not None and is_free(owner):
        return Placement(group, owner)
    if ring.has_space(best) and (other := owned_by(best)) is not None:
        return Placement(other, best)
    for replica_id in islice(ring.members_from(key), SUCCESSORS_MAX):
        if ring.has_space(replica_id) and is_free(replica_id):
            return Placement(group, replica_id)
    return Placement(group, best)


def place_adapter(ring: HashRing, key: int, best: str, *, is_free: Callable[[str], bool]) -> str:
    """Return the replica that gets the next batch of an adapter.

    `key` is the place of the adapter on the ring; `best` is the replica that gets a batch without
    an adapter. The owner of the adapter comes first, then the replicas behind it, which hold the
    adapter since the owner had too much, then the best one.
    """
    for replica_id in islice(ring.members_from(key), 1 + SUCCESSORS_MAX):
        if ring.has_space(replica_id) and is_free(replica_id):
            return replica_id
    return best
