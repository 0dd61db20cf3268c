"""P9: what a process lost while it was stopped, and whether it wrote there all the same."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from chaos.checkers.fencing import LeaseStep, Loss, losses
from chaos.drills.context import Setting
from chaos.errors import DrillError
from chaos.observations import database
from chaos.reports.measures import Measure
from chaos.reports.report import lost_by


class Stop(NamedTuple):
    """A process that stood still between two steps of the database."""

    host: str
    role: str
    from_sequence: int
    to_sequence: int


def lost_in(steps: Iterable[LeaseStep], stop: Stop) -> list[Loss]:
    """Return the leases that others took meanwhile."""
    return [
        loss
        for loss in losses(steps, stop.role)
        if loss.user == f"host_{stop.host}"
        and stop.from_sequence < loss.sequence <= stop.to_sequence
    ]


def judge_stops(
    setting: Setting, stops: Sequence[Stop], refused: Mapping[str, int]
) -> list[Measure]:
    """Return a trial for each lease that a stopped process lost, and what of them was in use.

    `refused` is, by role, how many writes of the stopped processes came to nothing since then.
    """
    steps = database.lease_steps(setting.running.engine)
    found: list[Measure] = []
    for role, count in refused.items():
        lost = [(stop, lost_in(steps, stop)) for stop in stops if stop.role == role]
        for stop, losses_of in lost:
            setting.note(f"{role} of {stop.host}, stopped, lost {len(losses_of)} leases")
        found += judge_losses(role, lost, count)
        setting.note(f"{role}: {count} writes under a lost lease were tried, and refused")
    return found


def judge_losses(
    role: str, lost: Iterable[tuple[Stop, Iterable[Loss]]], refused: int
) -> list[Measure]:
    """Judge what processes of one role lost.

    A process that is let go on may drop its leases before it writes, and then the fence was not
    put to the test: how often it was is told, and cannot be forced.
    """
    trials, used = [], 0
    for stop, losses_of in lost:
        for loss in losses_of:
            used += loss.was_used
            told = f"stopped: {role} of {stop.host}; {loss.job}" if loss.late_writes else ""
            trials.append(
                Measure(promise="P9", what=lost_by(role), value=loss.late_writes, evidence=told)
            )
    return [
        *trials,
        Measure(
            promise="P9",
            what=f"writes under a lost lease that were tried, and refused: {role}",
            value=refused,
            relation="report",
            size=len(trials),
            evidence="" if refused else "none was tried: the fence had nothing to refuse",
        ),
        Measure(
            promise="P9",
            what=f"of the lost leases those under which the stopped {role} had written",
            value=used,
            relation="report",
            size=len(trials),
        ),
    ]


def with_enough_losses(measures: list[Measure], wanted: Mapping[str, int]) -> list[Measure]:
    """Return `measures`; `wanted` is the least number of losses by role.

    Raises DrillError when they show nothing broken, and a role lost too few.
    """
    if any(measure.breaks_a_promise for measure in measures):
        return measures
    for role, count in wanted.items():
        lost = sum(measure.what == lost_by(role) for measure in measures)
        if lost < count:
            raise DrillError(f"stopped processes lost {lost} leases of {role} of {count} wanted")
    return measures
