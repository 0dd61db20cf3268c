"""From the need and the history of a pool to its next number of replicas. Pure.

Up at once: waiting work costs the SLO, and replicas that start count. Down slowly, since a wrong
reduction costs a cold start: by the highest need of `stabilisation_s`, by at most 25 % in 30 s, and
only if the others hold the load × N/(N−1). The last replica goes when the pool had no work for the
idle time and no job is due within a cold start. Bounds of the rules hold in each decision.
"""

import math
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from autoscaler.policy.capacity_veto import assess_trial, open_trial
from autoscaler.policy.placement import (
    Offer,
    plan_additions,
    plan_removals,
    plan_standby_removals,
)
from autoscaler.policy.replica_need import ReplicaNeed, has_work, last_work_s, replica_need
from autoscaler.policy.scaling_decision import Action, Reason, ScalingDecision, Withheld
from autoscaler.policy.scaling_history import (
    PoolHistory,
    current_replicas,
    observe,
)
from autoscaler.policy.scaling_rules import Bounds, ScalingRules, bounds_at
from autoscaler.policy.signals import (
    InvalidSignalError,
    PoolSignals,
    check_signals,
    checked,
    without_amounts,
)

STEP_INTERVAL_S: Final = 30.0
STEP_DIVISOR: Final = 4  # a step removes at most a quarter, and may remove one replica

VETO_ALERT: Final = "More replicas did not raise the rate of the pool: something else limits it."


class _Target(Struct, frozen=True):
    replicas: int
    reason: Reason
    withheld: tuple[Withheld, ...] = ()


def decide(
    rules: ScalingRules,
    signals: PoolSignals,
    history: PoolHistory,
    now_s: float,
    unavailable_spot: AbstractSet[Offer] = frozenset(),
    *,
    ordered: int | None = None,
) -> tuple[ScalingDecision, PoolHistory]:
    """Return the decision and the history for the next one.

    `ordered` are the replicas that an operator wants (`millrace scale set`): they replace the need
    and the steps at once, within bounds, quota and budget, also while inputs are stale or out of
    their limits, which then count as unread. The history goes on as without them.
    The rules were checked (`check_rules`). A clock that goes back counts as one that stands still.
    Raises InvalidSignalError for inputs out of their limits without an order: the last target then
    stays.
    """
    try:
        check_signals(signals)
    except InvalidSignalError:
        if ordered is None:
            raise
        signals = without_amounts(signals)
        check_signals(signals)
    now_s = max(checked("the time", now_s), history.at_s)
    need = replica_need(rules, signals, now_s, history.need)
    works = has_work(rules, signals, now_s)
    return decide_for_need(
        rules,
        signals,
        need,
        history,
        now_s,
        works=works,
        worked_s=last_work_s(signals, now_s),
        unavailable_spot=unavailable_spot,
        ordered=ordered,
    )


def decide_for_need(  # noqa: PLR0913  each one is an input of the decision
    rules: ScalingRules,
    signals: PoolSignals,
    need: ReplicaNeed,
    history: PoolHistory,
    now_s: float,
    *,
    works: bool,
    worked_s: float | None = None,
    unavailable_spot: AbstractSet[Offer] = frozenset(),
    ordered: int | None = None,
) -> tuple[ScalingDecision, PoolHistory]:
    """Return the decision for a need that is known, and the history for the next one.

    `works` says whether there is any work; an empty pool then gets a replica. `worked_s` is when
    there was some; None: now, if it `works`. `ordered` is that of `decide`.
    """
    now_s = max(checked("the time", now_s), history.at_s)
    if worked_s is None:
        worked_s = now_s if works else 0.0
    history = observe(history, need, now_s, worked_s=worked_s)
    history = replace(history, veto=assess_trial(history.veto, signals, now_s, need.cold_start_s))
    bounds = bounds_at(rules, now_s, need.cold_start_s)
    current = current_replicas(history, signals, need.cold_start_s)
    desired = _desired(need, bounds, works=works)
    if ordered is not None:
        aim = _Target(ordered, "operator")
    elif desired.replicas > current:
        aim = _raised(desired, current, bounds, history, works=works)
    elif desired.replicas < current:
        aim = _lowered(desired, current, rules, signals, history)
    else:
        aim = desired
    aim = _bounded(aim, bounds)
    return _carried_out(
        aim,
        current,
        (rules, signals, bounds),
        history,
        unavailable_spot,
        is_ordered=ordered is not None,
    )


def _desired(need: ReplicaNeed, bounds: Bounds, *, works: bool) -> _Target:
    """Return the need within the bounds; an empty pool with work, or an upload, needs one."""
    if works and need.replicas < 1:
        return _bounded(_Target(1, "work"), bounds)
    return _bounded(_Target(need.replicas, "need"), bounds)


def _bounded(aim: _Target, bounds: Bounds) -> _Target:
    if aim.replicas < bounds.min_replicas:
        return _Target(bounds.min_replicas, "min", aim.withheld)
    if aim.replicas > bounds.max_replicas:
        cut = Withheld(reason="max", replicas=aim.replicas)
        return _Target(bounds.max_replicas, "max", (*aim.withheld, cut))
    return aim


def _raised(
    desired: _Target, current: int, bounds: Bounds, history: PoolHistory, *, works: bool
) -> _Target:
    """Return the target of an increase: all at once, unless a veto is active."""
    if not history.veto.is_active(history.at_s):
        return desired
    least = max(current, bounds.min_replicas, int(works))
    if desired.replicas <= least:
        return desired
    cut = Withheld(reason="veto", replicas=desired.replicas)
    return _Target(least, "veto", (*desired.withheld, cut))


def _lowered(
    desired: _Target,
    current: int,
    rules: ScalingRules,
    signals: PoolSignals,
    history: PoolHistory,
) -> _Target:
    """Return the target of a reduction: the highest that any of its rules asks for."""
    now_s = history.at_s
    floors: list[tuple[int, Reason]] = []
    if signals.stale_inputs():
        floors.append((current, "stale"))
    peak = history.peak_within(rules.stabilisation_s)
    if now_s - history.started_s < rules.stabilisation_s:
        floors.append((current, "stabilisation"))
    if history.lowered_s is not None and now_s - history.lowered_s < STEP_INTERVAL_S:
        floors.append((current, "step_interval"))
    rested_s = now_s - history.last_work_s
    # Means of arrivals decay for the idle time: without work in the window, they keep no last
    # replica.
    if not (desired.replicas == 0 and current == 1 and rested_s >= rules.stabilisation_s):
        floors.append((math.ceil(peak), "stabilisation"))
    floors.append((current - max(1, current // STEP_DIVISOR), "step_size"))
    if current > 1:
        # Ceiling of the exact load: one of N leaves its part to N − 1.
        floors.append((math.ceil(peak * current / (current - 1)), "survivors"))
    is_serving = any(one.load_tokens > 0 for one in signals.live_replicas)
    if desired.replicas == 0 and (is_serving or rested_s < rules.idle_s):
        floors.append((1, "idle"))
    if desired.replicas == 0 and _is_due(signals, history):
        floors.append((1, "deadline"))
    floors = [(min(floor, current), reason) for floor, reason in floors]
    highest, reason = max(floors, key=lambda floor: floor[0])
    if highest <= desired.replicas:
        return desired
    return _Target(highest, reason, _withheld_by(floors, desired))


def _withheld_by(floors: list[tuple[int, Reason]], desired: _Target) -> tuple[Withheld, ...]:
    """Return each rule that asks for more than the need, once."""
    reasons = dict.fromkeys(reason for floor, reason in floors if floor > desired.replicas)
    added = tuple(Withheld(reason=reason, replicas=desired.replicas) for reason in reasons)
    return (*desired.withheld, *added)


def _is_due(signals: PoolSignals, history: PoolHistory) -> bool:
    """Return whether a job whose items may not be emitted yet is due within a cold start."""
    assert history.need is not None
    deadline_s = signals.next_deadline_s
    return deadline_s is not None and deadline_s - history.at_s <= history.need.cold_start_s


def _carried_out(
    aim: _Target,
    current: int,
    inputs: tuple[ScalingRules, PoolSignals, Bounds],
    history: PoolHistory,
    unavailable_spot: AbstractSet[Offer],
    *,
    is_ordered: bool,
) -> tuple[ScalingDecision, PoolHistory]:
    """Return the decision with the replicas to add or remove, and the history after it."""
    rules, signals, bounds = inputs
    assert history.need is not None
    live, asleep = len(signals.live_replicas), len(signals.standby_replicas)
    standby = min(rules.warm_pool, bounds.max_replicas - aim.replicas)
    additions = plan_additions(
        rules, signals.replicas, aim.replicas - live, unavailable_spot, standby
    )
    if additions.bound is not None:
        reached = live + additions.awake
        if signals.stale_inputs():
            reached = max(reached, min(current, bounds.max_replicas))
        cut = Withheld(reason=additions.bound, replicas=aim.replicas)
        aim = _Target(min(aim.replicas, reached), additions.bound, (*aim.withheld, cut))
    if additions.standby_bound is not None:
        cut = Withheld(reason=additions.standby_bound, replicas=standby, standby=True)
        aim = _Target(aim.replicas, aim.reason, (*aim.withheld, cut))
    woken = {one.wake_replica_id for one in additions.replicas if one.wake_replica_id is not None}
    sleeping = asleep - len(woken) + len(additions.replicas) - additions.awake
    surplus = max(0, live - aim.replicas)
    removals = plan_removals(rules, signals.replicas, surplus, with_starting=is_ordered)
    if len(removals) < surplus:
        cut = Withheld(reason="not_removable", replicas=aim.replicas)
        aim = _Target(aim.replicas, aim.reason, (*aim.withheld, cut))
    ended: tuple[str, ...] = ()
    if not signals.stale_inputs():
        ended = plan_standby_removals(rules, signals.replicas, sleeping - standby, woken)
    decision = ScalingDecision(
        at_s=history.at_s,
        action=_action(aim.replicas, current),
        target=aim.replicas,
        current=current,
        live=live,
        need=history.need,
        needed=history.need.replicas,
        bounds=bounds,
        reason=aim.reason,
        withheld=aim.withheld,
        additions=additions.replicas,
        removals=removals + ended,
        standby=min(standby, sleeping),
        asleep=asleep,
        standby_removals=len(ended),
        alert=VETO_ALERT if history.veto.is_active(history.at_s) else None,
    )
    return decision, _after(decision, signals, history)


def _action(target: int, current: int) -> Action:
    if target == current:
        return "hold"
    return "up" if target > current else "down"


def _after(decision: ScalingDecision, signals: PoolSignals, history: PoolHistory) -> PoolHistory:
    now_s, target = history.at_s, decision.target
    veto = history.veto
    if target > max(history.target, decision.current):
        veto = open_trial(veto, signals, now_s)
    return replace(
        history,
        target=target,
        ordered_s=now_s if target != history.target else history.ordered_s,
        lowered_s=now_s if decision.action == "down" else history.lowered_s,
        veto=veto,
    )
