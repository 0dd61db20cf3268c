"""P9: what a process lost while it was stopped, and whether it wrote there all the same."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from chaos.checkers.fencing import LeaseEvent, LostLease, lost_leases
from chaos.drills.context import DrillContext
from chaos.errors import DrillError
from chaos.observations import database
from chaos.reports.measures import Measure
from chaos.reports.report import lease_loss_measure


class PausedRole(NamedTuple):
    """A process that stood still between two steps of the database."""

    host: str
    role: str
    from_sequence: int
    to_sequence: int


def leases_lost_during(steps: Iterable[LeaseEvent], stop: PausedRole) -> list[LostLease]:
    """Return the leases that others took meanwhile."""
    return [
        loss
        for loss in lost_leases(steps, stop.role)
        if loss.user == f"host_{stop.host}"
        and stop.from_sequence < loss.sequence <= stop.to_sequence
    ]


def check_paused_roles(
    context: DrillContext, stops: Sequence[PausedRole], refused: Mapping[str, int]
) -> list[Measure]:
    """Return a trial for each lease that a stopped process lost, and what of them was in use.

    `refused` is, by role, how many writes of the stopped processes came to nothing since then.
    """
    steps = database.lease_events(context.installation.engine)
    found: list[Measure] = []
    for role, count in refused.items():
        lost = [(stop, leases_lost_during(steps, stop)) for stop in stops if stop.role == role]
        for stop, losses_of in lost:
            context.note(f"{role} of {stop.host}, stopped, lost {len(losses_of)} leases")
        found += check_lost_leases(role, lost, count)
        context.note(f"{role}: {count} writes under a lost lease were tried, and refused")
    return found


def check_lost_leases(
    role: str, lost: Iterable[tuple[PausedRole, Iterable[LostLease]]], refused: int
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
                Measure(
                    promise="P9",
                    what=lease_loss_measure(role),
                    value=loss.late_writes,
                    evidence=told,
                )
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


def require_losses(measures: list[Measure], wanted: Mapping[str, int]) -> list[Measure]:
    """Return `measures`; `wanted` is the least number of losses by role.

    Raises DrillError when they show nothing broken, and a role lost too few.
    """
    if any(measure.is_violation for measure in measures):
        return measures
    for role, count in wanted.items():
        lost = sum(measure.what == lease_loss_measure(role) for measure in measures)
        if lost < count:
            raise DrillError(f"stopped processes lost {lost} leases of {role} of {count} wanted")
    return measures
