"""One role of the control plane at the owner, and its next decision. For one thread; no I/O."""

from collections import Counter
from typing import Final

from msgspec.structs import replace

from autoscaler.loop.fleet import Kind
from autoscaler.loop.pool_orders import PoolPlan
from autoscaler.loop.scaled_unit import SETTLE_MIN_S, ScaledUnit
from autoscaler.policy.role_need import RoleProcess, RoleRules, RoleSignals, decide_role
from autoscaler.policy.scaling_history import first_history
from autoscaler.policy.signals import ReplicaSignal, ReplicaState

UNHEARD_S: Final = 4.0
"""Age of the load of a role that nobody reports: stale, so that nothing is reduced."""

_KIND: Final = Kind("", "", spot=False)  # a policy describes no device of a role


class ScaledRole(ScaledUnit):
    """The state of a role between decisions."""

    def read_signals(
        self, seen: RoleSignals | None, now_s: float, ordered: int | None = None
    ) -> RoleSignals | None:
        """Return the signals with the processes that were ordered and are to come.

        None: nothing was ever heard of the role, so its number of processes is not known, and none
        was `ordered` by an operator. A role that is not heard now has stale signals.
        """
        if seen is None:
            if self.history is None and ordered is None:
                return None
            seen = RoleSignals(age_s=UNHEARD_S)
        running = [
            ReplicaSignal(replica_id=one.process_id, state=ReplicaState.WARM, **_KIND._asdict())
            for one in seen.processes
        ]
        known = {one.process_id for one in seen.processes}
        coming = tuple(
            RoleProcess(process_id=one.replica_id, is_starting=True)
            for one in self.fleet.advance(running, now_s, SETTLE_MIN_S)
            if one.replica_id not in known
        )
        return replace(seen, processes=(*seen.processes, *coming))

    def decide(
        self, rules: RoleRules, signals: RoleSignals, now_s: float, ordered: int | None = None
    ) -> PoolPlan:
        """Decide, and return what to order. Raises InvalidSignalError.

        The platform chooses which processes end. `ordered` are those that an operator set.
        """
        history = self.history
        if history is None:
            history = first_history(now_s, len(signals.processes))
        self.decision, self.history = decide_role(rules, signals, history, now_s, ordered=ordered)
        return PoolPlan(
            kinds=Counter({_KIND: self.decision.target}),
            additions=self.decision.additions,
            removals=(),
            standby=0,
        )
