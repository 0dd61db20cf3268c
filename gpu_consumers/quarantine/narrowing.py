"""Narrows a redelivered batch down to the item that crashes its process: 100, 10, 1. Pure.

Only an item that ran alone is charged with the crash. Its neighbours run again.
"""

from dataclasses import dataclass

from topics.records.records import AttemptUnit, BatchAttempt

SPLIT_COUNT = 10
"""Units that one unit is split into."""

_SHARED_RUN_FACTOR = 2
"""An item that never ran alone needs so many times `crashes_max` crashes to be charged."""


@dataclass(frozen=True, slots=True)
class NarrowedUnits:
    """The units of a batch that are left to run, and the unit that is charged with its crashes."""

    units: list[AttemptUnit]
    charged: AttemptUnit | None = None


def split_unit(unit: AttemptUnit) -> list[AttemptUnit]:
    """Split a unit into `SPLIT_COUNT` units of about equal size, or into single items."""
    size = -(-unit.count // SPLIT_COUNT)
    end = unit.first + unit.count
    return [
        AttemptUnit(first, min(size, end - first), unit.crashes)
        for first in range(unit.first, end, size)
    ]


def initial_units(item_count: int) -> list[AttemptUnit]:
    """Return the units of a redelivered batch without a recorded attempt.

    Its first execution counts as one crash, because a crash is the usual cause of a redelivery.
    Units are tenths of the batch but have at least ten items: fewer units finish innocent items
    sooner, and after a crash a unit of ten is split into single items anyway.
    """
    size = max(SPLIT_COUNT, -(-item_count // SPLIT_COUNT))
    return [
        AttemptUnit(first, min(size, item_count - first), crashes=1)
        for first in range(0, item_count, size)
    ]


def is_charged(crashes: int, *, ran_alongside: bool, crashes_max: int) -> bool:
    """Return whether a single item or call is charged after this many crashes.

    `ran_alongside`: its last execution shared the engine with others, any of which may have
    caused the crash. Such an item needs twice as many crashes, so that it ends, too.
    """
    return crashes >= (crashes_max * _SHARED_RUN_FACTOR if ran_alongside else crashes_max)


def narrow_units(attempt: BatchAttempt, *, crashes_max: int) -> NarrowedUnits:
    """Return the units that the next owner runs after the last recorded attempt.

    A unit that was running at the crash is split. A single item runs again until it `is_charged`.
    Units with fewer crashes go first: they are most often innocent, and another crash would make
    them wait again.
    """
    if not attempt.is_running or not attempt.units:
        return NarrowedUnits(attempt.units)
    running, *rest = attempt.units
    crashed = AttemptUnit(running.first, running.count, running.crashes + 1)
    if crashed.count > 1:
        return NarrowedUnits(_fewest_crashes_first(rest + split_unit(crashed)))
    if is_charged(crashed.crashes, ran_alongside=attempt.in_company, crashes_max=crashes_max):
        return NarrowedUnits(rest, crashed)
    return NarrowedUnits(_fewest_crashes_first([*rest, crashed]))


def _fewest_crashes_first(units: list[AttemptUnit]) -> list[AttemptUnit]:
    return sorted(units, key=lambda unit: unit.crashes)
