"""Shares the quota of GPU types among pools: who lacks most, relative to what it has, first. Pure.

A pool keeps the GPUs that it has. The others are reserved one by one for the pool with the highest
need/live, counted with what it was given; a share that a pool does not use goes to those after it.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from autoscaler.policy.placement import Addition
from autoscaler.policy.scaling_rules import ScalingRules
from autoscaler.policy.signals import PoolSignals


class _Pool(Struct):
    types: tuple[str, ...]  # with a quota
    used: Counter[str]  # replicas
    gpus: int  # of a replica
    needed: int
    live: int
    reserved: dict[str, int]  # GPUs by type


class QuotaShares:
    """The GPUs of each type that are left, during one round of decisions."""

    def __init__(self, quotas: Mapping[str, int | None]) -> None:
        """`quotas` are GPUs by type, of all pools together; None: no limit."""
        self._left = {name: quota for name, quota in quotas.items() if quota is not None}
        self._pools: dict[str, _Pool] = {}
        self._reserved: Counter[str] = Counter()  # GPUs by type, of all pools

    def add_pool(
        self,
        pool: str,
        rules: ScalingRules,
        signals: PoolSignals,
        *,
        needed: int,
        gpus_per_replica: int,
    ) -> None:
        """Count the GPUs that a pool has and needs."""
        used = Counter([one.gpu_type for one in signals.replicas])
        self._pools[pool] = _Pool(
            types=tuple(one.name for one in rules.gpu_types if one.name in self._left),
            used=used,
            gpus=gpus_per_replica,
            needed=needed,
            live=len(signals.live_replicas),
            reserved={},
        )
        for name, count in used.items():
            if name in self._left:
                self._left[name] -= count * gpus_per_replica

    def share(self) -> list[str]:
        """Reserve what is left, once all pools were added; return the order of the decisions."""
        for name, left in self._left.items():
            self._reserve(name, left)
        return sorted(
            self._pools, key=lambda name: (-len(self._pools[name].types), self._pressure(name, 0))
        )

    def rules_for(self, pool: str, rules: ScalingRules) -> ScalingRules:
        """Return the rules with the quota that the other pools leave to this one."""
        one = self._pools[pool]
        if not one.types:
            return rules
        types = tuple(
            replace(
                kind,
                quota=min(kind.quota, one.used[kind.name] + self._free_replicas(pool, kind.name)),
            )
            if kind.name in self._left
            else kind
            for kind in rules.gpu_types
        )
        return replace(rules, gpu_types=types)

    def count_additions(self, pool: str, additions: Iterable[Addition]) -> None:
        """Count what was added to a pool; the rest of its share is free."""
        self._reserved.subtract(self._pools[pool].reserved)
        self._pools[pool].reserved = {}
        for one in additions:
            if one.wake_replica_id is None and one.gpu_type in self._left:
                self._left[one.gpu_type] -= self._pools[pool].gpus

    def _free_replicas(self, pool: str, name: str) -> int:
        """Return the replicas of a type that a pool may add."""
        reserved = self._reserved[name] - self._pools[pool].reserved.get(name, 0)
        return max(0, self._left[name] - reserved) // self._pools[pool].gpus

    def _reserve(self, name: str, left: int) -> None:
        wanting = [
            (self._pressure(pool, 0), pool)
            for pool, one in self._pools.items()
            if name in one.types and one.needed > one.live
        ]
        if sum(self._gpus_missing(pool) for _, pool in wanting) <= left:
            return  # enough for all
        heapq.heapify(wanting)
        while wanting:
            _, pool = heapq.heappop(wanting)
            one = self._pools[pool]
            given = one.reserved.get(name, 0) + one.gpus
            if given > min(self._gpus_missing(pool), left + one.reserved.get(name, 0)):
                continue
            left -= one.gpus
            one.reserved[name] = given
            self._reserved[name] += one.gpus
            heapq.heappush(wanting, (self._pressure(pool, given // one.gpus), pool))

    def _gpus_missing(self, pool: str) -> int:
        one = self._pools[pool]
        return max(0, one.needed - one.live) * one.gpus

    def _pressure(self, pool: str, given: int) -> float:
        """Return the negative need/live, by which the neediest pool comes first."""
        one = self._pools[pool]
        return -one.needed / max(0.5, one.live + given)
