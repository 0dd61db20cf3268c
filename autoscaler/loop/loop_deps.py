"""What the decision loop needs of the rest of the role."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from autoscaler.actuators.actuator import Actuator, KindCount
from autoscaler.loop.scaling_writer import ScalingWriter
from autoscaler.policies.policies import Policies
from autoscaler.policy.role_need import Role, RoleSignals
from autoscaler.signals.signal_store import SignalStore
from core.clock import Clock
from topics.records.scaling import PoolScaling, ScalingOverride


class Ownership(Protocol):
    """The part of `Owner` that the loop uses."""

    @property
    def epoch(self) -> int | None:
        """The epoch of this process; None: it does not decide."""
        ...

    @property
    def pools(self) -> Mapping[str, PoolScaling]:
        """The newest state of each pool."""
        ...

    @property
    def overrides(self) -> Mapping[str, ScalingOverride]:
        """What operators ordered."""
        ...

    def abandon(self, refused_epoch: int) -> None:
        """Stop deciding: an actuator has seen a newer epoch."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopDeps:
    """What the loop needs."""

    owner: Ownership
    store: SignalStore
    writer: ScalingWriter
    policies: Callable[[], Policies]
    actuators: Callable[[], Mapping[str, Actuator]]
    actuator_name: Callable[[Policies, str], str]  # of a pool
    is_caught_up: Callable[[], bool]  # whether all topics are read
    clock: Clock
    role_signals: Callable[[Role, float], RoleSignals | None] = lambda _role, _now_s: None
    note_existing: Callable[[Mapping[str, tuple[KindCount, ...]]], None] = lambda _: None
    """Gets the replicas that exist, by pool, after each round of decisions."""
