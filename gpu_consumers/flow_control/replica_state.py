"""What a replica publishes of itself besides its credit: its life cycle, GPU and spot notice."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gpu_consumers.engines.engine import EngineUse


class Lifecycle(StrEnum):
    """Where a replica is between its start and its end; the value is `Capacity.lifecycle`."""

    STARTING = "starting"  # it loads its model, or leaves standby
    WARM = "warm"
    DRAINING = "draining"  # it ends: it finishes or requeues what it has
    ASLEEP = "asleep"  # loaded, and in no group: a replica of the warm pool


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlace:
    """The GPU of a replica, by the names of the scaling policy."""

    gpu_type: str = ""  # empty: not known
    zone: str = ""
    is_spot: bool = False


ANY_GPU: Final = GpuPlace()
"""A GPU of which nothing is known."""


@dataclass(slots=True, kw_only=True, eq=False)
class PublishedState:
    """The state that all job classes of a replica share. Used on the event loop."""

    place: GpuPlace = ANY_GPU
    engine_use: Callable[[], EngineUse] = EngineUse
    lifecycle: Lifecycle = Lifecycle.WARM
    leaves_at_s: float = 0.0
    """When the GPU is taken away, Unix time; 0: no notice."""

    on_change: list[Callable[[], None]] = field(default_factory=list)
    """Called after a change of life cycle or notice, so that it is published at once."""

    def set_lifecycle(self, lifecycle: Lifecycle) -> None:
        """Change the life cycle."""
        if lifecycle is not self.lifecycle:
            self.lifecycle = lifecycle
            self._report()

    def set_notice(self, leaves_at_s: float) -> None:
        """Note when the GPU is taken away."""
        if leaves_at_s != self.leaves_at_s:
            self.leaves_at_s = leaves_at_s
            self._report()

    def _report(self) -> None:
        for call in self.on_change:
            call()
