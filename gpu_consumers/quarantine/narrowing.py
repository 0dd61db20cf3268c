"""How a batch that may have run before is narrowed down: 100, 10, 1. Pure.

Only an item that ran alone is charged; those beside it get another run.
"""

from dataclasses import dataclass

from topics.records.records import AttemptUnit, BatchAttempt

PARTS = 10
"""Into how many units one is split."""

_COMPANY_FACTOR = 2
"""So many times the executions convict what ran alone of its kind, but never by itself."""


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What is left to run of a batch, and the item that ended its process once too often."""

    units: list[AttemptUnit]
    charged: AttemptUnit | None = None


def split(unit: AttemptUnit) -> list[AttemptUnit]:
    """Cut a unit into tenths of about equal size; single items when there are few."""
    size = -(-unit.count // PARTS)
    end = unit.first + unit.count
    return [
        AttemptUnit(first, min(size, end - first), unit.crashes)
        for first in range(unit.first, end, size)
    ]


def first_units(item_count: int) -> list[AttemptUnit]:
    """Return the units of a batch of which nobody knows more than that it may have run.

    Its first execution is taken to have ended with its process: most often it has. Tenths, but of
    ten items at least: what is innocent is done sooner, and a crash leaves single items either way.
    """
    size = max(PARTS, -(-item_count // PARTS))
    return [
        AttemptUnit(first, min(size, item_count - first), crashes=1)
        for first in range(0, item_count, size)
    ]


def is_charged(crashes: int, *, in_company: bool, crashes_max: int) -> bool:
    """Whether a single item or call was in too many executions that ended with their process.

    `in_company`: the last one ran beside others, which may have ended it. Of something that never
    has the engine for itself twice as many are needed: it must come to an end, too.
    """
    return crashes >= (crashes_max * _COMPANY_FACTOR if in_company else crashes_max)


def narrowed(attempt: BatchAttempt, *, crashes_max: int) -> Narrowed:
    """Return how the next owner goes on after what the last one said.

    A unit that ran when its process ended is split. A single item is tried again until it
    `is_charged`. What has ended fewer processes goes first: it is innocent, most often, and the
    next death would have it wait again.
    """
    if not attempt.is_running or not attempt.units:
        return Narrowed(attempt.units)
    ran, *rest = attempt.units
    crashed = AttemptUnit(ran.first, ran.count, ran.crashes + 1)
    if crashed.count > 1:
        return Narrowed(_calmest_first(rest + split(crashed)))
    if is_charged(crashed.crashes, in_company=attempt.in_company, crashes_max=crashes_max):
        return Narrowed(rest, crashed)
    return Narrowed(_calmest_first([*rest, crashed]))


def _calmest_first(units: list[AttemptUnit]) -> list[AttemptUnit]:
    return sorted(units, key=lambda unit: unit.crashes)
