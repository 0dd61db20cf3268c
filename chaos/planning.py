"""What goes wrong when: drawn from a seeded generator, so that a seed repeats its plan."""

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of fault that a plan may draw."""

    name: str
    targets: tuple[str, ...]
    lasts_s: tuple[float, float] = (0.0, 0.0)  # shortest and longest; 0: over as it happens
    weight: float = 1.0
    times_max: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a plan."""

    at_s: float  # from the beginning of the plan
    kind: str
    target: str
    lasts_s: float

    @property
    def ends_s(self) -> float:
        """When it is healed."""
        return self.at_s + self.lasts_s


def plan(
    seed: int, kinds: Sequence[Kind], *, duration_s: float, gap_s: tuple[float, float]
) -> list[Fault]:
    """Return faults in the order of their time, all healed before `duration_s`.

    Between the beginnings of two lies a gap of `gap_s`; so they may overlap, but never two of one
    kind on one target.
    """
    chance = random.Random(seed)
    faults: list[Fault] = []
    at_s = 0.0
    while True:
        at_s += chance.uniform(*gap_s)
        if at_s >= duration_s:
            return faults
        kind = chance.choices(kinds, [kind.weight for kind in kinds])[0]
        fault = Fault(
            at_s=round(at_s, 3),
            kind=kind.name,
            target=chance.choice(kind.targets),
            lasts_s=round(chance.uniform(*kind.lasts_s), 3),
        )
        if fault.ends_s < duration_s and _fits(fault, kind, faults):
            faults.append(fault)


def _fits(fault: Fault, kind: Kind, others: Sequence[Fault]) -> bool:
    same = [other for other in others if other.kind == fault.kind]
    if len(same) >= kind.times_max:
        return False
    return all(other.ends_s < fault.at_s for other in same if other.target == fault.target)
