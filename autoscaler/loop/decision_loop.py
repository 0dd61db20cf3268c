"""Decides over every pool while this process is the owner. On an event loop."""

import asyncio
import contextlib
import logging
import math
import threading
import time
from typing import Final

from msgspec.structs import replace

from autoscaler import metrics
from autoscaler.loop.loop_deps import LoopDeps
from autoscaler.loop.operator_orders import alert_of, mode_of, ordered_replicas, override_in_force
from autoscaler.loop.order_sender import OrderSender
from autoscaler.loop.pool_orders import PoolPlan, kind_counts, pool_order
from autoscaler.loop.quota_sharing import QuotaShares
from autoscaler.loop.scaled_pool import Mode, Outlook, ScaledPool
from autoscaler.loop.scaled_role import ScaledRole
from autoscaler.loop.scaled_unit import ScaledUnit
from autoscaler.loop.scaling_writer import decision_json
from autoscaler.policies.policies import Policies
from autoscaler.policies.policy_rules import role_rules_of, rules_of
from autoscaler.policy.role_need import Role, role_key, role_of_key
from autoscaler.policy.scaling_decision import ScalingDecision
from autoscaler.policy.scaling_rules import InvalidScalingRulesError, ScalingRules, check_rules
from autoscaler.policy.signals import INPUTS, InvalidSignalError, ReplicaState
from topics.records.scaling import DecisionEntry, PoolScaling, ReplicaKind, ScalingOverride

POOLS_MAX: Final = 1_000
"""Pools that are scaled; of those that only topics name, those with work or replicas first."""

WARM_UP_S: Final = 3.0
"""Time for which a process reads before its first decision: publishers repeat each second."""

EARLY_INTERVAL_S: Final = 0.1
"""Least time between two decisions, of which the second is early."""

ACTUATOR_MISSING: Final = "actuator_missing"
"""Failure of an order whose actuator the settings do not have."""

_TERMS: Final = ("online", "waiting", "bulk", "burst")
_LOG = logging.getLogger(__name__)


class DecisionLoop:
    """Decides, writes what it decided, and sends orders."""

    def __init__(self, deps: LoopDeps) -> None:
        """Start as a process that is not the owner."""
        self._deps = deps
        self._epoch: int | None = None
        self._sequence = 0
        self._numbered_epoch: int | None = None
        self._pools: dict[str, ScaledPool] = {}
        self._roles: dict[str, ScaledRole] = {}  # by `role_key`
        self._read_since_s: float | None = None
        self._decided_s = 0.0
        self._rules: dict[str, ScalingRules | None] = {}
        self._rules_of: Policies | None = None
        self._wake = asyncio.Event()
        self._woken: set[str] = set()  # pools that made a decision early
        self.sender = OrderSender(deps.clock.monotonic_s, self._note_failure, deps.owner.abandon)

    async def run(self, stop: threading.Event, interval_s: float) -> None:
        """Decide each `interval_s`, and soon after work of an empty pool, until `stop`."""
        clock = self._deps.clock
        while not stop.is_set():
            started_s = clock.monotonic_s()
            await self.run_once()
            while not stop.is_set():
                passed_s = clock.monotonic_s() - started_s
                if passed_s >= interval_s:
                    self._woken.clear()
                    break
                if self._wake.is_set() and passed_s >= EARLY_INTERVAL_S:
                    break
                await self._wait(min(interval_s - passed_s, EARLY_INTERVAL_S))
            self._wake.clear()
        await self.sender.drop_all()

    async def _wait(self, seconds: float) -> None:
        """Wait for so long, or until the first work of an empty pool."""
        if self._wake.is_set():
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def note_work(self, pool: str) -> None:
        """Decide soon if a pool that is to have no replica gets work: a call waits for it.

        Each pool does so once until the next regular decision.
        """
        state = self._pools.get(pool)
        has_target = state is not None and state.history is not None and state.history.target > 0
        if not has_target and pool not in self._woken and len(self._woken) < POOLS_MAX:
            self._woken.add(pool)
            self._wake.set()

    async def run_once(self) -> None:
        """Decide over all pools, if this process is the owner and has read for `WARM_UP_S`."""
        now_s, epoch = self._deps.clock.wall_s(), self._deps.owner.epoch
        read_s = self._deps.clock.monotonic_s()
        if self._read_since_s is None and self._deps.is_caught_up():
            self._read_since_s = read_s
        if epoch != self._epoch:
            await self._change_epoch(epoch, now_s)
            if epoch != self._deps.owner.epoch:
                return  # it ended while orders of the last one were cancelled
        if epoch is None:
            self._deps.store.forget_arrivals()
            return
        if self._read_since_s is None or read_s - self._read_since_s < WARM_UP_S:
            return
        started_s = time.perf_counter()
        self._decide_all(epoch, now_s)
        metrics.DECISION_SECONDS.observe(time.perf_counter() - started_s)

    async def _change_epoch(self, epoch: int | None, now_s: float) -> None:
        self._epoch, self._pools, self._roles = epoch, {}, {}
        self._decided_s = now_s
        self._deps.store.forget_arrivals()
        self._deps.writer.forget()
        for gauge in (metrics.TARGET, metrics.LIVE, metrics.STANDBY, metrics.NEED, metrics.STALE):
            gauge.clear()
        await self.sender.drop_all()
        if epoch is None:
            return
        if epoch != self._numbered_epoch:
            self._numbered_epoch, self._sequence = epoch, 0
        for pool, record in self._deps.owner.pools.items():
            if record.epoch == epoch:  # it decided before, and was paused since
                self._sequence = max(self._sequence, record.sequence)
            state: ScaledUnit
            if role_of_key(pool) is not None:
                state = self._roles[pool] = ScaledRole(pool, now_s)
            else:
                state = self._pools[pool] = ScaledPool(pool, now_s)
            state.restore(record, now_s)

    def _decide_all(self, epoch: int, now_s: float) -> None:
        policies, overrides = self._deps.policies(), self._deps.owner.overrides
        before_s, self._decided_s = self._decided_s, now_s
        elapsed_s = max(0.0, now_s - before_s)
        shares = QuotaShares({name: one.quota for name, one in policies.gpu_types.items()})
        outlooks: dict[str, Outlook] = {}
        for pool in self._known_pools(policies):
            rules = self._rules_for(policies, pool)
            if rules is None:
                continue
            state = self._pools.get(pool)
            if state is None:
                state = self._pools[pool] = ScaledPool(pool, before_s)
            override = override_in_force(overrides, pool, now_s)
            try:
                outlooks[pool] = outlook = state.read_inputs(self._deps.store, rules, now_s)
            except InvalidSignalError as error:
                self._hold(epoch, state, (policies, override), error, now_s)
                continue
            metrics.REPLICA_SECONDS.labels(pool).inc(state.fleet.kinds.total() * elapsed_s)
            shares.add_pool(
                pool,
                rules,
                outlook.signals,
                needed=state.needed(outlook, now_s, ordered_replicas(override))
                if mode_of(policies, pool, override) == "active"
                else 0,
                gpus_per_replica=policies.policy_of(pool).gpus_per_replica,
            )
        self._deps.store.forget_arrivals()  # those of pools that were left out
        for pool in shares.share():
            inputs = policies, outlooks[pool], shares, override_in_force(overrides, pool, now_s)
            self._decide_pool(epoch, pool, inputs, now_s)
        self._deps.note_existing(
            {pool: kind_counts(self._pools[pool].fleet.existing) for pool in outlooks}
        )
        for role in Role:
            override = override_in_force(overrides, role_key(role), now_s)
            self._decide_role(epoch, role, (policies, override), now_s)

    def _decide_pool(
        self,
        epoch: int,
        pool: str,
        inputs: tuple[Policies, Outlook, QuotaShares, ScalingOverride | None],
        now_s: float,
    ) -> None:
        policies, outlook, shares, override = inputs
        state, mode = self._pools[pool], mode_of(policies, pool, override)
        name = self._deps.actuator_name(policies, pool)
        if mode == "paused":
            self._write(epoch, state, mode, name, now_s)
            return
        rules = shares.rules_for(pool, outlook.rules)
        try:
            plan = state.decide(outlook, rules, now_s, ordered_replicas(override))
        except InvalidSignalError as error:
            self._hold(epoch, state, (policies, override), error, now_s)
            return
        shares.count_additions(pool, plan.additions if mode == "active" else ())
        asleep = sum(one.state is ReplicaState.ASLEEP for one in outlook.replicas)
        metrics.STANDBY.labels(pool).set(asleep)
        self._conclude(epoch, state, plan, (mode, name), now_s)

    def _decide_role(
        self,
        epoch: int,
        role: Role,
        inputs: tuple[Policies, ScalingOverride | None],
        now_s: float,
    ) -> None:
        """Decide about a role that has a table, as about a pool; unheard roles stay as they are."""
        policies, override = inputs
        rules, key = role_rules_of(policies, role), role_key(role)
        if rules is None:
            self._roles.pop(key, None)
            return
        state = self._roles.get(key) or ScaledRole(key, now_s)
        mode, name = mode_of(policies, key, override), self._deps.actuator_name(policies, key)
        try:
            ordered = ordered_replicas(override)
            signals = state.read_signals(self._deps.role_signals(role, now_s), now_s, ordered)
            if signals is None:
                return
            self._roles[key] = state
            if mode == "paused":
                self._write(epoch, state, mode, name, now_s)
                return
            plan = state.decide(rules, signals, now_s, ordered)
        except InvalidSignalError as error:
            self._hold(epoch, state, inputs, error, now_s)
            return
        self._conclude(epoch, state, plan, (mode, name), now_s)

    def _conclude(
        self,
        epoch: int,
        state: ScaledUnit,
        plan: PoolPlan,
        carried_out: tuple[Mode, str],
        now_s: float,
    ) -> None:
        """Send the order of a decision, and write both. `carried_out`: mode, actuator."""
        assert state.decision is not None
        pool, (mode, name) = state.pool, carried_out
        failure = self.sender.failure(pool) if mode == "active" else ""
        if alert := alert_of(state, name, failure):
            state.decision = replace(state.decision, alert=alert)
        self._observe(pool, state.decision)
        if mode == "active":
            self._order(epoch, state, plan, name, now_s)
        self._write(epoch, state, mode, name, now_s)
        entry = DecisionEntry(
            pool=pool,
            epoch=epoch,
            at_s=now_s,
            applied=mode == "active",
            decision=b"",
            failure=failure,
        )
        self._deps.writer.write_decision(entry, state.decision)

    def _hold(
        self,
        epoch: int,
        state: ScaledUnit,
        inputs: tuple[Policies, ScalingOverride | None],
        error: InvalidSignalError,
        now_s: float,
    ) -> None:
        """Keep what a pool has, and tell its readers that it is not abandoned."""
        policies, override = inputs
        self._refuse(state.pool, "invalid_signal", error)
        name = self._deps.actuator_name(policies, state.pool)
        self._write(epoch, state, mode_of(policies, state.pool, override), name, now_s)

    def _order(
        self, epoch: int, state: ScaledUnit, plan: PoolPlan, name: str, now_s: float
    ) -> None:
        """Send the order of a plan, if it is due; without an actuator nothing is remembered."""
        pool = state.pool
        actuator = self._deps.actuators().get(name)
        if actuator is None:
            self.sender.fail(pool, ACTUATOR_MISSING)
            return
        is_carried_out = state.fleet.is_carried_out()
        state.take_order(plan, now_s)
        removals = [one for one in state.fleet.removing if actuator.chooses_removals]
        order = pool_order(pool, state.fleet.kinds, state.fleet.standby, removals)
        settle_s = 2 * max(30.0, state.start_s)
        if not self.sender.is_due(
            pool, order, actuator, is_carried_out=is_carried_out, settle_s=settle_s
        ):
            return
        self._sequence += 1
        sent = replace(order, epoch=epoch, sequence=self._sequence)
        record = _filled(self._record(epoch, state, "active", name, now_s), state)

        async def write() -> bool:
            await self._deps.writer.write_state(record)
            return self._deps.owner.epoch == epoch

        self.sender.send(sent, actuator, write)

    def _write(self, epoch: int, state: ScaledUnit, mode: Mode, name: str, now_s: float) -> None:
        record = self._record(epoch, state, mode, name, now_s)
        if self._deps.writer.is_state_due(record):
            self._deps.writer.repeat_state(_filled(record, state))

    def _record(
        self, epoch: int, state: ScaledUnit, mode: Mode, name: str, now_s: float
    ) -> PoolScaling:
        fleet = state.fleet
        return PoolScaling(
            pool=state.pool,
            epoch=epoch,
            sequence=self._sequence,
            at_s=now_s,
            mode=mode,
            actuator=name,
            target=0 if state.history is None else state.history.target,
            kinds=[
                ReplicaKind(replicas=count, **kind._asdict())
                for kind, count in sorted(fleet.kinds.items())
            ],
            removals=fleet.removing,
            awake=sorted(fleet.awake),
            standby=fleet.standby,
            start_s=state.start_s,
            wake_s=state.wake_s,
            waking_since_s=fleet.waking_since_s,
            asleep=fleet.asleep,
            failure=self.sender.failure(state.pool) if mode == "active" else "",
        )

    def _known_pools(self, policies: Policies) -> list[str]:
        named = [pool for pool in policies.pools if not pool.endswith("*")]
        busy = self._deps.store.busy_pools
        busy |= {pool for pool, state in self._pools.items() if state.fleet.kinds.total()}
        idle = (self._deps.store.pools | self._pools.keys()) - busy
        found = [pool for pool in (*sorted(busy), *sorted(idle)) if pool not in policies.pools]
        found = [pool for pool in found if role_of_key(pool) is None]  # no replica may pose as one
        return (named + found)[:POOLS_MAX]

    def _rules_for(self, policies: Policies, pool: str) -> ScalingRules | None:
        """Return the rules of a pool; None if they cannot be followed, which is logged once."""
        if policies is not self._rules_of:
            self._rules_of, self._rules = policies, {}
        if pool not in self._rules:
            try:
                rules = rules_of(policies, pool)
                check_rules(rules)
                self._rules[pool] = rules
            except InvalidScalingRulesError as error:
                self._refuse(pool, "invalid_rules", error)
                self._rules[pool] = None
        return self._rules[pool]

    def _observe(self, pool: str, decision: ScalingDecision) -> None:
        metrics.DECISIONS.labels(decision.action, decision.reason).inc()
        metrics.TARGET.labels(pool).set(decision.target)
        metrics.LIVE.labels(pool).set(decision.live)
        for term in _TERMS:
            value = getattr(decision.need, term)
            metrics.NEED.labels(pool, term).set(value if math.isfinite(value) else 0.0)
        for name in INPUTS:
            metrics.STALE.labels(pool, name).set(name in decision.need.stale)

    def _note_failure(self, pool: str) -> None:
        state = self._pools.get(pool) or self._roles.get(pool)
        if state is not None:
            state.fleet.mark_unmeasured()

    def _refuse(self, pool: str, code: str, error: Exception) -> None:
        metrics.REFUSED.labels(code).inc()
        _LOG.warning("no decision", extra={"pool": pool, "code": code, "reason": str(error)})


def _filled(record: PoolScaling, state: ScaledUnit) -> PoolScaling:
    """Return a record with the decision and the memory, which are encoded only to be written."""
    decision = b"" if state.decision is None else decision_json(state.decision)
    return replace(record, decision=decision, memory=state.memory())
