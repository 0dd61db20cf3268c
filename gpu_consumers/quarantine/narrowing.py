"""Narrows a redelivered batch down to the item that crashes its process: 100, 10, 1. Pure.

Only an item that ran alone is charged with the crash: when it crashed processes on two hosts, or
when the host of the crash serves other work afterwards. Its neighbours run again. Crashes on a
failing host (`host_history`) do not count, `crashes_max` times at most.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from gpu_consumers.quarantine.host_history import TRUSTED, HostVerdict, ran_alone
from topics.records.attempts import AttemptUnit, BatchAttempt

SPLIT_COUNT = 10
"""Units that one unit is split into."""

_SHARED_RUN_FACTOR = 2
"""An item that never ran alone needs so many times `crashes_max` crashes to be charged."""


@dataclass(frozen=True, slots=True)
class NarrowedUnits:
    """The units of a batch that are left to run, and the unit that is charged with its crashes."""

    units: list[AttemptUnit]
    charged: AttemptUnit | None = None
    crashed_alone: AttemptUnit | None = None
    """The item that explains the last end, if one does: its job has crashed these processes."""


def split_unit(unit: AttemptUnit) -> list[AttemptUnit]:
    """Split a unit into `SPLIT_COUNT` units of about equal size, or into single items."""
    size = -(-unit.count // SPLIT_COUNT)
    end = unit.first + unit.count
    return [
        replace(unit, first=first, count=min(size, end - first))
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


def narrow_units(
    attempt: BatchAttempt,
    *,
    crashes_max: int,
    host_id: str = "",
    verdict: HostVerdict = TRUSTED,
    repeats_here: bool = True,
) -> NarrowedUnits:
    """Return the units that the next owner runs after the last attempt, on host `host_id`.

    A unit that was running at the crash is split. A single item runs again until it `is_charged`;
    if all its crashes were on one host, it is returned as one that `awaits_proof`. If that is
    another host, it runs again here if `repeats_here`; else the caller may wait for that host
    (`crashed_elsewhere`). Units with fewer crashes go first: they are most often innocent, and
    another crash would make them wait again.
    """
    units, charged, crashed_alone = [*attempt.units], None, None
    if attempt.is_running and units:
        crashed, *rest = units
        if attempt.host_is_failing and crashed.forgiven < crashes_max:
            units = [*rest, replace(crashed, forgiven=crashed.forgiven + 1)]
        else:
            counted = _count_crash(crashed, attempt, crashes_max)
            if ran_alone(attempt) and not _forgives(counted, crashes_max, host_id, verdict):
                crashed_alone = counted
            units = rest + (split_unit(counted) if counted.count > 1 else [counted])
            if counted.awaits_proof and len(counted.hosts) > 1:
                units, charged = rest, counted
        units.sort(key=lambda unit: (unit.awaits_proof, crash_count(unit)))
    units = [_on_host(unit, crashes_max, host_id, verdict) for unit in units]
    if repeats_here:
        units = [
            replace(unit, awaits_proof=False)
            if crashed_elsewhere(unit, crashes_max, host_id)
            else unit
            for unit in units
        ]
    return NarrowedUnits(units, charged, crashed_alone)


def crashed_elsewhere(unit: AttemptUnit, crashes_max: int, host_id: str) -> bool:
    """Return whether an item waits for a charge that may be the fault of another host.

    One that has crashed too often is not run again: it waits for the present host.
    """
    is_foreign = not _crashed_only(unit, host_id)
    return unit.awaits_proof and is_foreign and unit.crashes < crashes_max * _SHARED_RUN_FACTOR


def crash_count(unit: AttemptUnit) -> int:
    """Return how many executions of the unit crashed, whether or not they count."""
    return unit.crashes + unit.forgiven


def _count_crash(unit: AttemptUnit, attempt: BatchAttempt, crashes_max: int) -> AttemptUnit:
    hosts = unit.hosts
    if ran_alone(attempt) and attempt.host_id and attempt.host_id not in hosts:
        hosts = [*hosts, attempt.host_id]
    ends = unit.process_ends
    if attempt.process_id is not None and not attempt.in_company:
        ends = [*ends, attempt.process_id]
    crashes = unit.crashes + 1
    has_crashed_alone = unit.count == 1 and is_charged(
        crashes, ran_alongside=attempt.in_company, crashes_max=crashes_max
    )
    return replace(
        unit, crashes=crashes, hosts=hosts, awaits_proof=has_crashed_alone, process_ends=ends
    )


def _on_host(
    unit: AttemptUnit, crashes_max: int, host_id: str, verdict: HostVerdict
) -> AttemptUnit:
    """Return the unit as the owner on a host sees it.

    A failing host forgives the crashes that it caused itself.
    """
    if _forgives(unit, crashes_max, host_id, verdict):
        forgiven = unit.forgiven + unit.crashes - 1
        return AttemptUnit(unit.first, unit.count, 1, forgiven=forgiven)
    return unit


def _forgives(unit: AttemptUnit, crashes_max: int, host_id: str, verdict: HostVerdict) -> bool:
    """Whether the host, which is failing, forgives the crashes of the unit."""
    is_own = _crashed_only(unit, host_id)
    return verdict.is_failing and is_own and unit.crashes > 1 and unit.forgiven < crashes_max


def _crashed_only(unit: AttemptUnit, host_id: str) -> bool:
    """Whether the unit crashed alone on no other host."""
    return not set(unit.hosts) - {host_id}
