"""One pool at the owner: what it remembers, and its next decision. For one thread; no I/O."""

from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from autoscaler.loop.pool_orders import PoolPlan, plan_order
from autoscaler.loop.scaled_unit import SETTLE_MIN_S, ScaledUnit, arrivals_at
from autoscaler.policy.replica_need import CORRECTION_MAX, CORRECTION_MIN, replica_need
from autoscaler.policy.scaling_history import first_history, moved_back
from autoscaler.policy.scaling_rules import ScalingRules
from autoscaler.policy.scaling_step import decide
from autoscaler.policy.signals import (
    PoolSignals,
    ReplicaSignal,
    ReplicaState,
    advance_arrivals,
)
from autoscaler.signals.signal_store import PoolInputs, SignalStore

Mode = Literal["active", "observe", "paused"]

_CLOCK_BACK_S: Final = 1.0  # a smaller step back counts as a clock that stands still
_ARRIVALS_S: Final = 3600.0
_ARRIVED_PER_S_MAX: Final = 1e12  # tokens/s; more is no traffic, and would be remembered
_CORRECTION_WEIGHT: Final = 0.1  # of a second's ratio in the mean


class Outlook(Struct, frozen=True, kw_only=True):
    """A pool before its decision: its signals, and the GPUs that it has."""

    rules: ScalingRules
    signals: PoolSignals

    @property
    def replicas(self) -> tuple[ReplicaSignal, ...]:
        """All replicas, those that are to come, drain or sleep included."""
        return self.signals.replicas


class ScaledPool(ScaledUnit):
    """The state of a pool between decisions."""

    def read_inputs(self, store: SignalStore, rules: ScalingRules, now_s: float) -> Outlook:
        """Take the inputs of the pool. Raises InvalidSignalError."""
        ordered = self.fleet.kinds.total()
        inputs = store.take_inputs(
            self.pool,
            now_s,
            ordered=ordered,
            has_arrivals=self._had_arrivals(now_s),
            had_bulk=self._had_bulk(),
        )
        if now_s < self.arrivals.at_s:
            self.arrivals = arrivals_at(self.arrivals, now_s)
        elapsed_s = max(1.0, now_s - self.arrivals.at_s)
        arrived = min(inputs.arrived_tokens, _ARRIVED_PER_S_MAX * elapsed_s)
        self.arrivals = advance_arrivals(self.arrivals, arrived, now_s)
        self._correct(inputs)
        default_type = rules.gpu_types[0].name
        seen = [
            one if one.gpu_type else replace(one, gpu_type=default_type) for one in inputs.replicas
        ]
        for one in seen:
            if one.spot and one.replica_id in inputs.leaving:
                self.fleet.refuse_spot(one, now_s)
        replicas = self.fleet.advance(seen, now_s, self._settle_s(rules))
        signals = PoolSignals(
            arrivals=self.arrivals,
            online_backlog_tokens=inputs.waiting_tokens,
            bulk=inputs.bulk,
            replicas=replicas,
            rate_tokens_per_s=sum(
                one.tokens_per_s for one in replicas if one.state is ReplicaState.WARM
            ),
            cold_start_s=self.fleet.times.p95_s(),
            correction=self.correction,
            output_weight=inputs.output_weight,
            uploads=inputs.uploads,
            calls=inputs.calls,
            next_deadline_s=inputs.next_deadline_s,
            age_s=inputs.age_s,
        )
        return Outlook(rules=rules, signals=signals)

    def needed(self, outlook: Outlook, now_s: float, ordered: int | None = None) -> int:
        """Return the replicas that the pool needs: those that an operator `ordered`, or else by its
        last decision if there is one.
        """
        if ordered is not None:
            return min(ordered, outlook.rules.max_replicas)
        if self.decision is not None:
            return min(self.decision.needed, outlook.rules.max_replicas)
        need = replica_need(outlook.rules, outlook.signals, now_s, None)
        return min(need.replicas, outlook.rules.max_replicas)

    def decide(
        self, outlook: Outlook, rules: ScalingRules, now_s: float, ordered: int | None = None
    ) -> PoolPlan:
        """Decide with these rules, and return what to order. Raises InvalidSignalError.

        `ordered` are the replicas that an operator set.
        """
        signals = outlook.signals
        history = self.history
        if history is None:
            history = first_history(now_s, len(signals.live_replicas))
        if now_s < history.at_s - _CLOCK_BACK_S:
            history = moved_back(history, now_s)
        unavailable = frozenset(self.fleet.unavailable_spot)
        self.decision, self.history = decide(
            rules, signals, history, now_s, unavailable, ordered=ordered
        )
        return plan_order(self.decision, signals.replicas, self.fleet.stuck)

    def _had_arrivals(self, now_s: float) -> bool:
        """Return whether calls arrived lately, so that some batcher has to publish demand."""
        last_s = self.arrivals.last_arrival_s
        return last_s is not None and now_s - last_s < _ARRIVALS_S

    def _had_bulk(self) -> bool:
        """Return whether the last decision, of whichever owner, was made with bulk work."""
        need = None if self.history is None else self.history.need
        return need is not None and need.bulk > 0

    def _correct(self, inputs: PoolInputs) -> None:
        for name, ratio in inputs.correction.items():
            bounded = min(CORRECTION_MAX, max(CORRECTION_MIN, ratio))
            known = self.correction.get(name, bounded)
            self.correction[name] = known + _CORRECTION_WEIGHT * (bounded - known)

    def _settle_s(self, rules: ScalingRules) -> float:
        measured = self.fleet.times.p95_s()
        start_s = max(measured.get(one.name, one.cold_start_s) for one in rules.gpu_types)
        return max(SETTLE_MIN_S, 2 * start_s)
