"""What the owner knows of a pool or role between two decisions. For one thread; no I/O."""

from typing import Final

from msgspec.structs import replace

from autoscaler.loop.fleet import SPOT_RETRY_S, Fleet, Kind
from autoscaler.loop.pool_orders import PoolPlan
from autoscaler.ownership.pool_memory import (
    PoolMemory,
    decode_memory,
    encode_memory,
    percentile_95,
)
from autoscaler.policy.scaling_decision import ScalingDecision
from autoscaler.policy.scaling_history import PoolHistory, first_history, moved_back
from autoscaler.policy.signals import ArrivalRates
from topics.records.scaling import PoolScaling

WAKE_PRIOR_S: Final = 2.0
"""Time of a wake before one was measured."""

SETTLE_MIN_S: Final = 60.0
"""Shortest time that an order has to be carried out, as in `current_replicas`."""


class ScaledUnit:
    """The state of a pool or role between decisions."""

    def __init__(self, pool: str, now_s: float) -> None:
        """Start without knowledge of it; a role has the name of its `role_key`."""
        self.pool = pool
        self.fleet = Fleet()
        self.history: PoolHistory | None = None
        self.arrivals = ArrivalRates(at_s=now_s)
        self.correction: dict[str, float] = {}
        self.decision: ScalingDecision | None = None

    def restore(self, record: PoolScaling, now_s: float) -> None:
        """Go on with what an earlier owner decided and remembered."""
        memory = decode_memory(self.pool, record.memory)
        kinds = {
            Kind(one.gpu_type, one.zone, one.spot): one.replicas
            for one in record.kinds
            if one.replicas > 0
        }
        waking = {} if memory is None else memory.open_wakes
        awake = {replica_id: waking.get(replica_id, 0.0) for replica_id in record.awake}
        open_starts = () if memory is None else memory.open_starts
        self.fleet.restore(kinds, awake, record.removals, open_starts, now_s)
        self.fleet.standby = max(0, record.standby)
        if memory is None:
            self.history = first_history(now_s, max(0, record.target))
            return
        self.fleet.unavailable_spot = {
            (gpu_type, zone): min(until_s, now_s + SPOT_RETRY_S)
            for gpu_type, zone, until_s in memory.unavailable_spot
        }
        self.fleet.times = memory.times
        self.history, self.correction = memory.history, dict(memory.correction)
        # What arrived while nobody counted is not known: the means go on from now.
        self.arrivals = arrivals_at(memory.arrivals, now_s)
        if self.history.at_s > now_s:
            self.history = moved_back(self.history, now_s)

    def take_order(self, plan: PoolPlan, now_s: float) -> None:
        """Remember what is ordered."""
        self.fleet.order(plan.kinds, plan.additions, plan.removals, plan.standby, now_s)

    @property
    def start_s(self) -> float:
        """p95 of a start, as the last decision had it."""
        return 0.0 if self.decision is None else self.decision.need.cold_start_s

    @property
    def wake_s(self) -> float:
        """p95 of a wake of a replica in standby."""
        wakes_s = self.fleet.times.wakes_s
        return percentile_95(wakes_s) if wakes_s else WAKE_PRIOR_S

    def memory(self) -> bytes:
        """Return what the next owner goes on with; empty before the first decision."""
        if self.history is None:
            return b""
        waking = {name: at_s for name, at_s in self.fleet.awake.items() if at_s > 0}
        return encode_memory(
            PoolMemory(
                history=self.history,
                arrivals=self.arrivals,
                times=self.fleet.times,
                correction=self.correction,
                open_starts=self.fleet.open_starts,
                open_wakes=waking,
                unavailable_spot=tuple(
                    (*offer, until_s) for offer, until_s in self.fleet.unavailable_spot.items()
                ),
            )
        )


def arrivals_at(arrivals: ArrivalRates, now_s: float) -> ArrivalRates:
    """Return the means that go on from now, also with a clock that went back."""
    last_s = arrivals.last_arrival_s
    return replace(
        arrivals, at_s=now_s, last_arrival_s=None if last_s is None else min(last_s, now_s)
    )
