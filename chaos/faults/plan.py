"""Fault schedules, drawn from a seeded generator: a seed repeats its schedule."""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

_DRAWS_MAX: Final = 100
"""Attempts to place a kind that every plan has; a kind that fits nowhere is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """A kind of fault that a plan may draw."""

    name: str
    targets: tuple[str, ...]
    resources: Callable[[str], Collection[str]] = lambda target: (target,)
    """Returns the processes, routes or services that a fault of a target occupies."""

    lasts_s: tuple[float, float] = (0.0, 0.0)  # shortest and longest; 0: healed at once
    weight: float = 1.0
    times_max: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a plan."""

    at_s: float  # from the start of the plan
    kind: str
    target: str
    lasts_s: float
    resources: frozenset[str]

    @property
    def ends_s(self) -> float:
        """When it is healed, in seconds from the start of the plan."""
        return self.at_s + self.lasts_s


def plan_faults(
    seed: int, kinds: Sequence[FaultKind], *, duration_s: float, gap_s: tuple[float, float]
) -> list[Fault]:
    """Return faults in the order of their time, all healed before `duration_s`.

    The starts of two faults are `gap_s` apart. Faults may overlap, but never two on one resource,
    because healing the first would heal the second. One fault of each kind is placed first; the
    remaining moments are filled by weight.
    """
    chance = random.Random(seed)
    free = _moments(chance, gap_s, duration_s)
    faults: list[Fault] = []
    for kind in kinds:
        for _ in range(_DRAWS_MAX if free else 0):
            at_s = chance.choice(free)
            fault = _draw(chance, kind, at_s)
            if fault.ends_s < duration_s and _fits(fault, kind, faults):
                faults.append(fault)
                free.remove(at_s)
                break
    for at_s in free:
        kind = chance.choices(kinds, [kind.weight for kind in kinds])[0]
        fault = _draw(chance, kind, at_s)
        if fault.ends_s < duration_s and _fits(fault, kind, faults):
            faults.append(fault)
    return sorted(faults, key=lambda fault: fault.at_s)


def _moments(chance: random.Random, gap_s: tuple[float, float], duration_s: float) -> list[float]:
    moments = []
    at_s = chance.uniform(*gap_s)
    while at_s < duration_s:
        moments.append(round(at_s, 3))
        at_s += chance.uniform(*gap_s)
    return moments


def _draw(chance: random.Random, kind: FaultKind, at_s: float) -> Fault:
    target = chance.choice(kind.targets)
    return Fault(
        at_s=at_s,
        kind=kind.name,
        target=target,
        lasts_s=round(chance.uniform(*kind.lasts_s), 3),
        resources=frozenset(kind.resources(target)),
    )


def _fits(fault: Fault, kind: FaultKind, others: Sequence[Fault]) -> bool:
    if sum(other.kind == fault.kind for other in others) >= kind.times_max:
        return False
    return all(
        other.ends_s < fault.at_s or fault.ends_s < other.at_s
        for other in others
        if other.resources & fault.resources
    )
