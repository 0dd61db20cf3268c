"""How a batch that may have run before is narrowed down: 100, 10, 1. Pure.

Only an item that ran alone is ever charged; those beside it get another run.
"""

from dataclasses import dataclass

from topics.records import Attempt, Unit

PARTS = 10
"""Into how many units one is split."""


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What is left to run of a batch, and the item that ended its process once too often."""

    units: list[Unit]
    charged: Unit | None = None


def split(unit: Unit) -> list[Unit]:
    """Cut a unit into tenths of about equal size; single items when there are few."""
    size = -(-unit.count // PARTS)
    end = unit.first + unit.count
    return [
        Unit(first, min(size, end - first), unit.crashes) for first in range(unit.first, end, size)
    ]


def first_units(item_count: int) -> list[Unit]:
    """Return the units of a batch of which nobody knows more than that it may have run.

    Its first execution is taken to have ended with its process: most often it has. Tenths, but of
    ten items at least: what is innocent is done sooner, and a crash leaves single items either way.
    """
    size = max(PARTS, -(-item_count // PARTS))
    return [
        Unit(first, min(size, item_count - first), crashes=1)
        for first in range(0, item_count, size)
    ]


def narrowed(attempt: Attempt, *, crashes_max: int) -> Narrowed:
    """Return how the next owner goes on after what the last one said.

    A unit that ran when its process ended is split. An item that ran alone then is tried again
    until it was in `crashes_max` executions that ended so. What has ended fewer processes goes
    first: it is innocent, most often, and the next death would have it wait again.
    """
    if not attempt.is_running or not attempt.units:
        return Narrowed(attempt.units)
    ran, *rest = attempt.units
    crashed = Unit(ran.first, ran.count, ran.crashes + 1)
    if crashed.count > 1:
        return Narrowed(_calmest_first(rest + split(crashed)))
    if crashed.crashes >= crashes_max:
        return Narrowed(rest, crashed)
    return Narrowed(_calmest_first([*rest, crashed]))


def _calmest_first(units: list[Unit]) -> list[Unit]:
    return sorted(units, key=lambda unit: unit.crashes)
