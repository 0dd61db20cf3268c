"""The replicas of each pool, from `capacity`: one signal for the records of all classes."""

from collections.abc import Iterable
from typing import Final

from autoscaler.metrics import DROPPED
from autoscaler.policy.replica_need import LEARNED_RATE_MAX
from autoscaler.policy.signals import REPLICAS_MAX, ReplicaSignal, ReplicaState
from autoscaler.signals.amounts import AMOUNT_MAX, amount
from batcher.policy.compute_model import PRIOR, ComputeModel
from topics.records.records import Capacity

GONE_S: Final = 10.0
"""Time without a record after which a replica does not exist any more."""

_LIFECYCLES: Final = {
    "starting": ReplicaState.STARTING,
    "warm": ReplicaState.WARM,
    "draining": ReplicaState.DRAINING,
    "asleep": ReplicaState.ASLEEP,
}
_OUTPUT_MEANS_MAX: Final = 64  # endpoints of a pool


class _Replica:
    """The newest record of each class of a replica, and the signal made of them."""

    __slots__ = ("classes", "heard_s", "leaves_at_s", "signal")

    def __init__(self) -> None:
        self.classes: dict[str, Capacity] = {}
        self.heard_s = 0.0
        self.leaves_at_s = 0.0
        self.signal: ReplicaSignal | None = None  # None: records came since it was made


class ReplicaTable:
    """What replicas published last. For one thread."""

    def __init__(self) -> None:
        """Start without replicas."""
        self._pools: dict[str, dict[str, _Replica]] = {}
        self._heard_s: dict[str, float] = {}  # newest record by pool
        self._compute = ComputeModel()
        self._endpoints: dict[str, set[str]] = {}
        self._output_means: dict[str, dict[str, float]] = {}

    @property
    def pools(self) -> Iterable[str]:
        """The pools that had replicas."""
        return self._heard_s.keys()

    def record(self, capacity: Capacity, now_s: float) -> None:
        """Apply a record that arrived at `now_s`."""
        replicas = self._pools.setdefault(capacity.pool, {})
        replica = replicas.get(capacity.replica_id)
        if replica is None:
            if len(replicas) >= REPLICAS_MAX:
                DROPPED.labels("replicas").inc()
                return
            replica = replicas[capacity.replica_id] = _Replica()
        replica.classes[capacity.job_class] = capacity
        replica.heard_s = self._heard_s[capacity.pool] = now_s
        replica.signal = None
        if capacity.compute:
            self._compute.record_capacity(capacity)
            known = self._endpoints.setdefault(capacity.pool, set())
            known.update(one.endpoint for one in capacity.compute[:_OUTPUT_MEANS_MAX])
        for mean in capacity.output_means or ():
            tokens = amount(mean.tokens, "output_means") if mean.tenant_id is None else None
            means = self._output_means.setdefault(capacity.pool, {})
            if tokens and (mean.endpoint in means or len(means) < _OUTPUT_MEANS_MAX):
                known_tokens = means.get(mean.endpoint, tokens)
                means[mean.endpoint] = known_tokens + 0.1 * (tokens - known_tokens)

    def replicas(self, pool: str, now_s: float) -> list[ReplicaSignal]:
        """Return the replicas of a pool that were heard in the last `GONE_S`."""
        replicas = self._pools.get(pool)
        if not replicas:
            return []
        found, gone = [], []
        for replica_id, replica in replicas.items():
            if now_s - replica.heard_s > GONE_S:
                gone.append(replica_id)
                continue
            if replica.signal is None:
                replica.signal = _merged(replica)
            found.append(replica.signal)
        for replica_id in gone:
            del replicas[replica_id]
        return found

    def leaving(self, pool: str) -> set[str]:
        """Return the replicas of a pool whose spot GPU is taken away."""
        replicas = self._pools.get(pool, {})
        return {name for name, replica in replicas.items() if replica.leaves_at_s > 0}

    def age_s(self, pool: str, now_s: float) -> float | None:
        """Return the age of the oldest of the replicas' newest records; None: no replica ever.

        Once all replicas are gone it is the time since the last one was heard.
        """
        if (heard_s := self._heard_s.get(pool)) is None:
            return None
        first_s = now_s - GONE_S
        heard = [one.heard_s for one in self._pools.get(pool, {}).values()]
        oldest_s = min([one for one in heard if one >= first_s], default=heard_s)
        return max(0.0, now_s - oldest_s)

    def output_weight(self, pool: str) -> float:
        """Return how many prompt tokens an output token costs: the mean of measured endpoints."""
        endpoints = self._endpoints.get(pool)
        if not endpoints:
            return PRIOR[1] / PRIOR[0]
        weights = [self._compute.output_weight(pool, endpoint) for endpoint in endpoints]
        return min(100.0, max(0.1, sum(weights) / len(weights)))

    def output_means(self, pool: str) -> dict[str, float]:
        """Return the mean output tokens of one result, by endpoint."""
        return self._output_means.get(pool, {})


def _merged(replica: _Replica) -> ReplicaSignal:
    records = list(replica.classes.values())
    newest = records[-1]
    leaves_at_s = rate = load = 0.0
    has_suspects = False
    for one in records:
        if one.leaves_at_s != 0:
            leaves_at_s = max(leaves_at_s, amount(one.leaves_at_s, "leaves_at_s") or 0.0)
        measured = amount(one.tokens_per_s, "tokens_per_s") or 0.0
        rate = max(rate, min(measured, LEARNED_RATE_MAX))
        load += amount(one.load_tokens, "load_tokens") or 0.0
        has_suspects = has_suspects or one.in_danger
    replica.leaves_at_s = leaves_at_s
    return ReplicaSignal(
        replica_id=newest.replica_id,
        state=ReplicaState.DRAINING if leaves_at_s > 0 else _state(records),
        gpu_type=newest.gpu_type,
        zone=newest.zone,
        spot=newest.spot,
        tokens_per_s=rate,
        load_tokens=min(AMOUNT_MAX, load),
        has_suspects=has_suspects,
    )


def _state(records: list[Capacity]) -> ReplicaState:
    """Return the state of a replica; one of an older release is warm while it is available."""
    for one in reversed(records):
        if (state := _LIFECYCLES.get(one.lifecycle)) is not None:
            return state
    available = any(one.available for one in records)
    return ReplicaState.WARM if available else ReplicaState.STARTING
