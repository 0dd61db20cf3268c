"""How many processes a role of the control plane needs for its rate, backlog and delays. Pure.

With R the work of one process per second (`target_per_s`) and T the seconds in which a backlog is
worked off (`drain_s`), in processes:

    rate      Σ work per second / R
    backlog   Σ waiting / (R T): the lag in seconds is waiting / rate
    busy      Σ parts of a core in use / 0.7, instead of `rate` where it is higher
    delay     of the api: one process more while its event loops are late

The unit of work is requests (api), bytes to validate (intake) or records (batcher,
results-writer).
The number goes up and down by the step rules of pools (`scaling_step`), and not beyond the
partitions that the role reads, as a process without a partition has no work.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from autoscaler.policy.replica_need import NeedInputs, ReplicaNeed
from autoscaler.policy.scaling_decision import ScalingDecision
from autoscaler.policy.scaling_history import PoolHistory
from autoscaler.policy.scaling_rules import (
    POOL_REPLICAS_MAX,
    InvalidScalingRulesError,
    ReplicaType,
    ScalingRules,
)
from autoscaler.policy.scaling_step import decide_for_need
from autoscaler.policy.signals import (
    STALE_S,
    ArrivalRates,
    InvalidSignalError,
    PoolSignals,
    ReplicaSignal,
    ReplicaState,
    checked,
)

BUSY_MAX: Final = 0.7
"""Part of a core that a process may use: above it, its delays grow fast."""

LOOP_LAG_MAX_S: Final = 0.1
"""Mean lag of the api's event loops (p95 of a second) from which one process more is needed."""

ROLE_START_S: Final = 20.0
"""Time from an order of a process to its first work."""

_TERM_MAX: Final = float(POOL_REPLICAS_MAX)


class Role(StrEnum):
    """The roles that are scaled by their own load."""

    API = "api"
    INTAKE = "intake"
    BATCHER = "batcher"
    RESULTS_WRITER = "results-writer"


ROLE_PARTITIONS: Final[Mapping[Role, int]] = {Role.BATCHER: 16, Role.RESULTS_WRITER: 8}
"""Partitions that a role reads as a group; the other roles share their work without them."""


ROLE_UNITS: Final[Mapping[Role, str]] = {
    Role.API: "requests",
    Role.INTAKE: "bytes",
    Role.BATCHER: "records",
    Role.RESULTS_WRITER: "records",
}
"""What the work of a role is counted in."""

_KEY_PREFIX: Final = "role"  # before a colon, which names of pools do not have


def role_key(role: Role) -> str:
    """Return the name that a role has where a pool has its own: in records, orders, metrics."""
    return f"{_KEY_PREFIX}:{role}"


def role_of_key(name: str) -> Role | None:
    """Return the role that `role_key` gave this name; None for a pool."""
    prefix, _, role = name.partition(":")
    return Role(role) if prefix == _KEY_PREFIX and role in ROLE_UNITS else None


class RoleRules(Struct, frozen=True, kw_only=True):
    """How one role is scaled."""

    role: Role
    min_replicas: int = 1
    max_replicas: int
    target_per_s: float
    drain_s: float = 10.0


class RoleProcess(Struct, frozen=True, kw_only=True):
    """One process of a role. One that starts has no load yet."""

    process_id: str
    work_per_s: float = 0.0
    waiting: float = 0.0
    busy: float = 0.0
    loop_lag_s: float = 0.0
    age_s: float = 0.0  # of its last report
    is_starting: bool = False


class RoleSignals(Struct, frozen=True, kw_only=True):
    """What is known of a role when a decision is made."""

    processes: tuple[RoleProcess, ...] = ()
    waiting: float = 0.0  # work that no process reported, as files that nobody reads yet
    age_s: float = 0.0  # of `waiting`


def check_role_rules(rules: RoleRules) -> None:
    """Raise InvalidScalingRulesError for bounds or targets that cannot be followed."""
    if not 1 <= rules.min_replicas <= rules.max_replicas <= POOL_REPLICAS_MAX:
        limit = f"1 <= min_replicas <= max_replicas <= {POOL_REPLICAS_MAX}"
        raise InvalidScalingRulesError(f"{rules.role}: {limit}")
    if rules.min_replicas > replicas_max_of(rules):
        text = f"{rules.role}: min_replicas is above its {replicas_max_of(rules)} partitions"
        raise InvalidScalingRulesError(text)
    for name, value in (("target_per_s", rules.target_per_s), ("drain_s", rules.drain_s)):
        if not (math.isfinite(value) and 1e-6 <= value <= 1e12):
            raise InvalidScalingRulesError(f"{rules.role}: {name}: above 0")


def replicas_max_of(rules: RoleRules) -> int:
    """Return the most processes of a role: its bound, and at most its partitions."""
    return min(rules.max_replicas, ROLE_PARTITIONS.get(rules.role, POOL_REPLICAS_MAX))


def role_need(
    rules: RoleRules, signals: RoleSignals, previous: ReplicaNeed | None = None
) -> ReplicaNeed:
    """Return the terms: `online` is rate, busy or delay, `waiting` the backlog.

    While a report is older than `STALE_S`, no term is below that of `previous`. Raises
    InvalidSignalError.
    """
    _check(signals)
    running = [one for one in signals.processes if not one.is_starting]
    rate = math.fsum(one.work_per_s for one in running) / rules.target_per_s
    busy = math.fsum(one.busy for one in running) / BUSY_MAX
    waiting = math.fsum([signals.waiting, *(one.waiting for one in running)])
    online = min(_TERM_MAX, max(rate, busy, _delay(rules, signals.processes, running)))
    backlog = min(_TERM_MAX, waiting / (rules.target_per_s * rules.drain_s))
    is_stale = _is_stale(signals)
    if is_stale and previous is not None:
        online, backlog = max(online, previous.online), max(backlog, previous.waiting)
    return ReplicaNeed(
        online=online,
        waiting=backlog,
        replica_tokens_per_s=rules.target_per_s,
        cold_start_s=ROLE_START_S,
        stale=("online", "replicas") if is_stale else (),
        inputs=NeedInputs(
            arrivals_per_s=rate * rules.target_per_s,
            backlog_tokens=waiting,
            drain_s=rules.drain_s,
        ),
    )


def decide_role(
    rules: RoleRules,
    signals: RoleSignals,
    history: PoolHistory,
    now_s: float,
    *,
    ordered: int | None = None,
) -> tuple[ScalingDecision, PoolHistory]:
    """Return the decision about a role and the history for the next one, as `decide` for a pool.

    `ordered` are the processes that an operator wants, also if loads are out of their limits. The
    rules were checked (`check_role_rules`). Raises InvalidSignalError without an order.
    """
    if ordered is not None:
        signals = _sound(signals)
    need = role_need(rules, signals, history.need)
    is_stale = _is_stale(signals)
    load = PoolSignals(
        arrivals=ArrivalRates(at_s=0.0),
        replicas=tuple(_replica(one, rules) for one in signals.processes),
        age_s={"online": 2 * STALE_S, "replicas": 2 * STALE_S} if is_stale else {},
    )
    scaling_rules, works = _scaling_rules(rules), need.exact > 0
    return decide_for_need(scaling_rules, load, need, history, now_s, works=works, ordered=ordered)


def _sound(signals: RoleSignals) -> RoleSignals:
    """Return the signals; if a load is out of its limits, the processes alone, as stale ones."""
    try:
        _check(signals)
    except InvalidSignalError:
        processes = tuple(
            RoleProcess(process_id=one.process_id, is_starting=one.is_starting)
            for one in signals.processes
        )
        return RoleSignals(processes=processes, age_s=2 * STALE_S)
    return signals


def _delay(
    rules: RoleRules, processes: Sequence[RoleProcess], running: Sequence[RoleProcess]
) -> float:
    """Return one process more than exist while the api's loops are late, and none starts."""
    if rules.role is not Role.API or not running:
        return 0.0
    mean_s = math.fsum(one.loop_lag_s for one in running) / len(running)
    if mean_s <= LOOP_LAG_MAX_S:
        return 0.0
    is_starting = len(running) < len(processes)
    return float(len(processes) if is_starting else len(processes) + 1)


def _is_stale(signals: RoleSignals) -> bool:
    ages = [signals.age_s, *(one.age_s for one in signals.processes if not one.is_starting)]
    return max(ages) > STALE_S


def _replica(process: RoleProcess, rules: RoleRules) -> ReplicaSignal:
    state = ReplicaState.STARTING if process.is_starting else ReplicaState.WARM
    load = process.work_per_s + process.waiting / rules.drain_s
    return ReplicaSignal(
        replica_id=process.process_id, state=state, gpu_type="", zone="", load_tokens=load
    )


def _scaling_rules(rules: RoleRules) -> ScalingRules:
    one = ReplicaType(
        name="",
        tokens_per_s=rules.target_per_s,
        cost_per_hour=0.0,
        quota=POOL_REPLICAS_MAX,
        cold_start_s=ROLE_START_S,
    )
    most = replicas_max_of(rules)
    return ScalingRules(min_replicas=rules.min_replicas, max_replicas=most, gpu_types=(one,))


def _check(signals: RoleSignals) -> None:
    if len(signals.processes) > POOL_REPLICAS_MAX:
        raise InvalidSignalError(f"{len(signals.processes)} processes; at most 10000.")
    checked("waiting work", signals.waiting)
    checked("an age", signals.age_s)
    for one in signals.processes:
        checked("work per second", one.work_per_s)
        checked("waiting work", one.waiting)
        checked("a busy part", one.busy)
        checked("a loop's lag", one.loop_lag_s)
        checked("an age", one.age_s)
