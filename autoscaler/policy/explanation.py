"""Says in plain sentences why a pool is to have so many replicas. Pure.

Each value comes from the decision, so an old decision is explained as it was made.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from autoscaler.policy.placement import Addition
from autoscaler.policy.replica_need import ReplicaNeed
from autoscaler.policy.role_need import (
    BUSY_MAX,
    ROLE_PARTITIONS,
    ROLE_UNITS,
    Role,
    role_of_key,
)
from autoscaler.policy.scaling_decision import Reason, ScalingDecision, Withheld

REASONS: Final[Mapping[Reason, str]] = {
    "need": "the need decided",
    "operator": "an operator ordered it",
    "min": "the minimum decided",
    "max": "the maximum decided",
    "work": "the pool was empty and has work or an upload, which needs one replica",
    "quota": "the quota of its GPU types decided",
    "budget": "the budget per hour decided",
    "spot": "spot GPUs are unavailable, and on-demand ones must not replace them",
    "veto": "more replicas did not raise the rate of the pool before",
    "stale": "an input is older than 3 s, and old data lowers nothing",
    "stabilisation": "the highest need of the last 300 s decided",
    "step_interval": "the last reduction was less than 30 s ago",
    "step_size": "a step removes at most a quarter of the replicas",
    "survivors": "the others could not hold the load with one replica less",
    "idle": "the pool had work within its idle time, or still serves some",
    "deadline": "a job is due within the time of a cold start",
    "not_removable": "the rest are starting or have suspect items, and are not removed",
}
"""What each reason means, as a clause."""


def explanation(pool: str, decision: ScalingDecision) -> list[str]:
    """Return the lines that explain a decision about a pool, or about a role by its `role_key`."""
    role = role_of_key(pool)
    word = "replica" if role is None else "process"
    lines = [f"{pool} is to have {_count(decision.target, word)}: {REASONS[decision.reason]}."]
    lines.append(f"Decided at {_time(decision.at_s)}; {_now(decision)}")
    lines.append("")
    lines += _terms(decision.need) if role is None else _role_terms(decision.need, role)
    lines.append(f"  sum      {decision.need.exact:8.2f}  rounded up: {decision.needed}")
    lines.append("")
    lines.append(_bounds(decision))
    if decision.need.stale:
        names = ", ".join(decision.need.stale)
        lines.append(f"Older than 3 s, so their terms do not fall: {names}.")
    lines += [_withheld(one, word) for one in decision.withheld]
    lines += _changes(decision) if role is None else _role_changes(decision)
    if decision.alert:
        lines.append(f"Alert: {decision.alert}")
    return lines


def _now(decision: ScalingDecision) -> str:
    asleep = f", {decision.asleep} of the warm pool" if decision.asleep else ""
    return (
        f"{decision.current} existed or were ordered, {decision.live} were warm or started{asleep}."
    )


def _terms(need: ReplicaNeed) -> Iterator[str]:
    given, mu = need.inputs, need.replica_tokens_per_s
    drain = f"({mu:,.0f}/s × {given.drain_s:,g} s)"
    yield (
        f"  online   {need.online:8.2f}  {given.arrivals_per_s:,.0f} tokens/s arrive / "
        f"({given.utilisation:g} × {mu:,.0f} tokens/s of a replica)"
    )
    yield f"  waiting  {need.waiting:8.2f}  {given.backlog_tokens:,.0f} tokens wait / {drain}"
    if given.bulk_deadline_s is None:
        yield f"  bulk     {need.bulk:8.2f}  no jobs"
    else:
        yield (
            f"  bulk     {need.bulk:8.2f}  {given.bulk_tokens:,.0f} tokens of jobs, the first due "
            f"at {_time(given.bulk_deadline_s)}, less {need.cold_start_s:,.0f} s for a start"
        )
    burst_s = given.burst_s or need.cold_start_s
    burst_drain_s = given.burst_s + given.drain_s
    yield (
        f"  burst    {need.burst:8.2f}  {given.burst_tokens:,.0f} tokens above the mean in "
        f"{burst_s:,g} s / ({mu:,.0f}/s × {burst_drain_s:,g} s)"
    )


def _bounds(decision: ScalingDecision) -> str:
    bounds = decision.bounds
    schedule = ", by the schedule" if bounds.scheduled else ""
    return f"Bounds: {bounds.min_replicas} to {bounds.max_replicas}{schedule}."


def _role_terms(need: ReplicaNeed, role: Role) -> Iterator[str]:
    """Say the two terms that a role has, in the unit of its work."""
    given, unit, rate = need.inputs, ROLE_UNITS[role], need.replica_tokens_per_s
    delay = ", and late event loops" if role is Role.API else ""
    yield (
        f"  load     {need.online:8.2f}  the most of: {given.arrivals_per_s:,.0f} {unit}/s / "
        f"{rate:,.0f} {unit}/s of a process, cores in use / {BUSY_MAX:g}{delay}"
    )
    yield (
        f"  waiting  {need.waiting:8.2f}  {given.backlog_tokens:,.0f} {unit} wait / "
        f"({rate:,.0f}/s × {given.drain_s:,g} s)"
    )
    if role in ROLE_PARTITIONS and given.arrivals_per_s > 0:
        lag_s = given.backlog_tokens / given.arrivals_per_s
        yield f"           the group is {lag_s:,.1f} s behind at its rate"


def _withheld(one: Withheld, word: str) -> str:
    if one.standby:
        return f"Not done: a warm pool of {one.replicas}, because {REASONS[one.reason]}."
    return f"Not done: {_count(one.replicas, word)}, because {_because(one.reason)}."


def _because(reason: Reason) -> str:
    return REASONS[reason].replace(" decided", " holds")


def _changes(decision: ScalingDecision) -> Iterator[str]:
    woken = sum(one.wake_replica_id is not None for one in decision.additions)
    if woken:
        yield f"Woken from the warm pool: {woken}."
    new = Counter(_kind(one) for one in decision.additions if one.wake_replica_id is None)
    yield from (f"Added: {count} × {kind}." for kind, count in sorted(new.items()))
    if decision.removals:
        yield f"Removed: {', '.join(decision.removals)}."
    if decision.standby or decision.asleep:
        yield f"To sleep in the warm pool: {decision.standby}."


def _role_changes(decision: ScalingDecision) -> Iterator[str]:
    """Say how many processes come or go: the platform chooses which."""
    if decision.additions:
        yield f"Added: {len(decision.additions)}."
    if decision.removals:
        yield f"Removed: {len(decision.removals)}."


def _kind(one: Addition) -> str:
    parts = [
        one.gpu_type or "a device that the policy does not describe",
        f"in {one.zone}" if one.zone else "",
        "spot" if one.spot else "on demand",
        "for the warm pool" if one.standby else "",
        f"{one.cost_per_hour:,.2f} per hour each" if one.cost_per_hour else "cost not known",
    ]
    return ", ".join(part for part in parts if part)


def _count(count: int, word: str) -> str:
    plural = f"{word}es" if word.endswith("s") else f"{word}s"
    return f"{count} {word if count == 1 else plural}"


def _time(at_s: float) -> str:
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"second {at_s:g}"
