"""What was decided for a pool and why: each term, the bound that decided, what was withheld. Pure.

A decision is data that encodes to JSON, so that it can be kept, compared and shown.
"""

from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from autoscaler.policy.placement import Addition
from autoscaler.policy.replica_need import ReplicaNeed
from autoscaler.policy.scaling_rules import Bounds

Action = Literal["up", "down", "hold"]

Reason = Literal[
    "need",  # the terms, rounded up
    "operator",  # ordered so many
    "min",
    "max",
    "work",  # the pool was empty and has work or an upload
    "quota",
    "budget",
    "spot",  # unavailable, and on demand must not replace it
    "veto",  # more replicas did not raise the pool's rate
    "stale",  # an input is older than 3 s
    "stabilisation",  # the highest need of the last 300 s
    "step_interval",  # the last reduction was less than 30 s ago
    "step_size",  # at most 25 %
    "survivors",  # the others could not hold the load
    "idle",  # had work within the idle time, or serves some
    "deadline",  # a job is due within a cold start
    "not_removable",  # replicas with suspects, or that start
]


class Withheld(Struct, frozen=True, kw_only=True):
    """A change that was not made."""

    reason: Reason
    replicas: int  # the target, or the number of the warm pool, without this reason
    standby: bool = False  # a change of the warm pool


class ScalingDecision(Struct, frozen=True, kw_only=True):
    """The replicas that a pool is to have, and why.

    `target`, `current` and `live` count replicas of the group. Those of the warm pool come on top,
    and together they are at most the maximum.
    """

    at_s: float
    action: Action
    target: int
    current: int  # replicas that exist or are ordered
    live: int  # replicas that are warm or start
    need: ReplicaNeed
    needed: int  # the need rounded up
    bounds: Bounds
    reason: Reason  # what decided the target
    withheld: tuple[Withheld, ...] = ()
    additions: tuple[Addition, ...] = ()
    removals: tuple[str, ...] = ()
    alert: str | None = None
    standby: int = 0  # replicas that are to sleep: loaded and out of the group
    asleep: int = 0  # replicas that sleep or start for the warm pool now
    standby_removals: int = 0  # how many of `removals` are of the warm pool


class WarmPoolChange(NamedTuple):
    """Replicas of the warm pool that a decision starts, wakes and ends."""

    started: int
    woken: int
    ended: int


def warm_pool_change(decision: ScalingDecision) -> WarmPoolChange:
    """Return what a decision orders for the warm pool."""
    return WarmPoolChange(
        started=sum(one.standby for one in decision.additions),
        woken=sum(one.wake_replica_id is not None for one in decision.additions),
        ended=decision.standby_removals,
    )


def decision_document(decision: ScalingDecision) -> dict[str, Any]:
    """Return the decision as a JSON object, with the sum of its terms."""
    document: dict[str, Any] = msgspec.to_builtins(decision)
    document["need"]["exact"] = decision.need.exact
    return document
