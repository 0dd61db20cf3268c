"""Builders of scaling policies and of the signals of a pool; times are near 1.8e9 Unix seconds."""

from collections.abc import Sequence
from typing import Any

from autoscaler.policy.scaling_rules import ReplicaType, ScalingRules
from autoscaler.policy.signals import (
    ArrivalRates,
    BulkBucket,
    PoolSignals,
    ReplicaSignal,
    ReplicaState,
)

NOW_S = 1_800_000_000.0
RATE = 1000.0  # tokens/s of one replica
COLD_START_S = 90.0


def gpu_type(name: str = "l4", **fields: Any) -> ReplicaType:
    given: dict[str, Any] = {
        "tokens_per_s": RATE,
        "cost_per_hour": 1.0,
        "quota": 100,
        "cold_start_s": COLD_START_S,
    } | fields
    return ReplicaType(name=name, **given)


def rules_of(**fields: Any) -> ScalingRules:
    given: dict[str, Any] = {
        "max_replicas": 50,
        "gpu_types": (gpu_type(),),
        "burst_factor": 0.0,
    } | fields
    return ScalingRules(**given)


def replica(number: int, state: ReplicaState = ReplicaState.WARM, **fields: Any) -> ReplicaSignal:
    given: dict[str, Any] = {"gpu_type": "l4", "zone": "", "tokens_per_s": RATE} | fields
    return ReplicaSignal(replica_id=f"r{number:04}", state=state, **given)


def warm(count: int) -> tuple[ReplicaSignal, ...]:
    return tuple(replica(number) for number in range(count))


def arrivals(per_s: float, now_s: float = NOW_S, variance_per_s: float = 0.0) -> ArrivalRates:
    """Means of a constant rate; 0 per second: nothing ever arrived."""
    return ArrivalRates(
        at_s=now_s,
        fast_per_s=per_s,
        slow_per_s=per_s,
        variance_per_s=variance_per_s,
        last_arrival_s=now_s if per_s > 0 else None,
    )


def bucket(tokens: float, left_s: float, now_s: float = NOW_S) -> BulkBucket:
    return BulkBucket(
        deadline_s=now_s + left_s,
        endpoint="/v1/chat/completions",
        prompt_tokens=tokens / 2,
        output_tokens=tokens / 2,
    )


def signals_of(
    per_s: float = 0.0,
    replicas: Sequence[ReplicaSignal] = (),
    now_s: float = NOW_S,
    **fields: Any,
) -> PoolSignals:
    return PoolSignals(arrivals=arrivals(per_s, now_s), replicas=tuple(replicas), **fields)
