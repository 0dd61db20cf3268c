"""What a simulated engine can be told to do wrong: for drills, and for nothing else."""

from collections.abc import Iterable
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class SimulatedFault(BaseModel):
    """One fault, and the bodies that meet it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    contains: str = Field(min_length=1)
    """What the JSON of a body must contain."""

    fault: Literal["crash", "hang", "freeze", "oom", "error500", "overflow", "nan", "slow"]
    """`crash` ends the process at once. `hang` never answers and can be cancelled. `freeze` stops
    the whole process. `oom` is too much for the memory. `error500` is an answer. `overflow` is
    longer than the context. `nan` is answered whole with log probabilities that JSON cannot say.
    `slow` answers `slow_s` later."""

    slow_s: float = Field(default=0, ge=0)
    """`slow` alone: seconds on top of the latency."""

    @model_validator(mode="after")
    def _check_slow(self) -> Self:
        """Refuse a delay that nothing waits for, and a slowness without delay."""
        if (self.fault == "slow") != (self.slow_s > 0):
            raise ValueError("slow_s belongs to slow, which needs it")
        return self


def fault_of(body: bytes, faults: Iterable[tuple[bytes, SimulatedFault]]) -> SimulatedFault | None:
    """Return the first fault that a body meets."""
    return next((fault for contained, fault in faults if contained in body), None)
