"""Faults that a simulated engine can inject, for drills only."""

from collections.abc import Iterable
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class SimulatedFault(BaseModel):
    """One fault, and the bodies that trigger it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    contains: str = Field(min_length=1)
    """Text that the JSON of a triggering body contains."""

    fault: Literal["crash", "hang", "freeze", "oom", "error500", "overflow", "nan", "slow"]
    """`crash` ends the process at once. `hang` never answers and can be cancelled. `freeze` blocks
    the process. `oom` raises out of memory. `error500` answers with status 500. `overflow` is a
    prompt longer than the context. `nan` succeeds with log probabilities that were NaN. `slow`
    answers `slow_s` later."""

    slow_s: float = Field(default=0, ge=0)
    """For `slow`: seconds in addition to the latency."""

    @model_validator(mode="after")
    def _check_slow(self) -> Self:
        """Require `slow_s` for `slow` and for no other fault."""
        if (self.fault == "slow") != (self.slow_s > 0):
            raise ValueError("slow_s belongs to slow, which needs it")
        return self


def fault_of(body: bytes, faults: Iterable[tuple[bytes, SimulatedFault]]) -> SimulatedFault | None:
    """Return the first fault that a body triggers."""
    return next((fault for contained, fault in faults if contained in body), None)
