"""What the decisions of a pool remember: the last target, peaks of the need, when work was seen.

Frozen data that encodes to JSON: an autoscaler that takes over goes on with it. Pure.
"""

import math
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from autoscaler.policy.capacity_veto import Veto
from autoscaler.policy.replica_need import ReplicaNeed
from autoscaler.policy.signals import PoolSignals, ReplicaState

STABILISATION_S: Final = 300.0
"""Longest time whose highest need bounds reductions, and the one of a pool that sets none. Source:
HPA's default stabilisation window."""

GAP_MAX_S: Final = 60.0
"""Time without a decision after which the peaks are not known and are observed anew."""

_SLOT_S: Final = 10.0
_SLOTS: Final = int(STABILISATION_S / _SLOT_S)
_SETTLE_MIN_S: Final = 60.0
_STARTS: Final = 2


class PoolHistory(Struct, frozen=True, kw_only=True):
    """The state between two decisions."""

    started_s: float  # since when needs are observed without a gap
    at_s: float  # of the last decision
    target: int
    ordered_s: float | None = None  # when the target last changed
    lowered_s: float | None = None  # when it was last reduced
    last_work_s: float
    need: ReplicaNeed | None = None
    peaks: tuple[tuple[int, float], ...] = ()  # (slot of 10 s, highest need in it)
    veto: Veto = Veto()

    @property
    def peak(self) -> float:
        """The highest need of the last 300 s, not rounded."""
        return self.peak_within(STABILISATION_S)

    def peak_within(self, seconds: float) -> float:
        """Return the highest need of the last seconds, 300 at most, not rounded."""
        oldest = int((self.at_s - seconds) // _SLOT_S)
        return max((exact for slot, exact in self.peaks if slot >= oldest), default=0.0)


def first_history(now_s: float, replicas: int) -> PoolHistory:
    """Return the history of a pool of which nothing is known but its number of replicas."""
    return PoolHistory(started_s=now_s, at_s=now_s, target=replicas, last_work_s=now_s)


def observe(
    history: PoolHistory, need: ReplicaNeed, now_s: float, *, worked_s: float
) -> PoolHistory:
    """Return the history with the need of this decision; 31 peaks are kept at most.

    `worked_s` is when the pool had work, as far as is known now.
    """
    slot = int(now_s // _SLOT_S)
    known = {at: exact for at, exact in history.peaks if slot - _SLOTS <= at <= slot}
    known[slot] = max(known.get(slot, 0.0), need.exact)
    is_gap = now_s - history.at_s > GAP_MAX_S
    return replace(
        history,
        at_s=now_s,
        started_s=now_s if is_gap else history.started_s,
        need=need,
        peaks=tuple(sorted(known.items())),
        last_work_s=now_s if is_gap else max(worked_s, history.last_work_s),
    )


def moved_back(history: PoolHistory, now_s: float) -> PoolHistory:
    """Return the history for a clock that went back: its times are not ahead of `now_s`.

    Peaks of a time ahead are not known any more, so needs are observed anew.
    """
    return replace(
        history,
        started_s=now_s,
        at_s=now_s,
        ordered_s=None if history.ordered_s is None else min(history.ordered_s, now_s),
        lowered_s=None if history.lowered_s is None else min(history.lowered_s, now_s),
        last_work_s=min(history.last_work_s, now_s),
        veto=Veto(),
    )


def current_replicas(history: PoolHistory, signals: PoolSignals, cold_start_s: float) -> int:
    """Return the replicas that exist or are ordered.

    An order counts until it had time to be carried out: so a slow start, or a slow removal, is not
    ordered twice. Then those that exist count, for example after the number was changed by hand.
    Lost replicas that the peak needs go on counting, so that they are replaced and not reduced.
    """
    settle_s = max(_SETTLE_MIN_S, _STARTS * cold_start_s)
    if history.ordered_s is not None and history.at_s - history.ordered_s < settle_s:
        return history.target
    live = signals.live_replicas
    removable = sum(one.state is ReplicaState.WARM and not one.has_suspects for one in live)
    if signals.stale_inputs():
        return max(removable, history.target)
    needed = max(len(live), math.ceil(history.peak))
    return max(removable, min(history.target, needed))
