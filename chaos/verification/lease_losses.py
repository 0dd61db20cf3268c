"""P9: leases that a process lost while it was paused, and its later writes under them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from chaos.checkers.fencing import LeaseEvent, LostLease, lost_leases
from chaos.drills.context import DrillContext
from chaos.errors import DrillError
from chaos.observations.triggers import lease_events
from chaos.reports.measures import Measure
from chaos.reports.report import lease_loss_measure


class PausedRole(NamedTuple):
    """A process that was paused between two lease events."""

    host: str
    role: str
    from_sequence: int
    to_sequence: int


def leases_lost_during(events: Iterable[LeaseEvent], pause: PausedRole) -> list[LostLease]:
    """Return the leases that other hosts took during a pause."""
    return [
        lost
        for lost in lost_leases(events, pause.role)
        if lost.user == f"host_{pause.host}"
        and pause.from_sequence < lost.sequence <= pause.to_sequence
    ]


def check_paused_roles(
    context: DrillContext, pauses: Sequence[PausedRole], refused: Mapping[str, int]
) -> list[Measure]:
    """Return a trial for each lease that a paused process lost, and counts of refused writes.

    `refused` is, by role, how many writes of the paused processes were refused.
    """
    events = lease_events(context.engine)
    found: list[Measure] = []
    for role, count in refused.items():
        lost = [
            (pause, leases_lost_during(events, pause)) for pause in pauses if pause.role == role
        ]
        for pause, leases in lost:
            context.note(f"{role} of {pause.host} lost {len(leases)} leases while it was paused")
        found += check_lost_leases(role, lost, count)
        context.note(f"{role}: {count} writes under a lost lease were tried, and refused")
    return found


def check_lost_leases(
    role: str, lost: Iterable[tuple[PausedRole, Iterable[LostLease]]], refused: int
) -> list[Measure]:
    """Return the measures of one role's lost leases.

    A resumed process may drop its leases before it writes, which leaves the fence untested. The
    number of refused writes is therefore reported and has no limit.
    """
    trials, used = [], 0
    for pause, leases in lost:
        for lease in leases:
            used += lease.was_used
            details = f"paused: {role} of {pause.host}; {lease.job}" if lease.late_writes else ""
            trials.append(
                Measure("P9", lease_loss_measure(role), lease.late_writes, evidence=details)
            )
    return [
        *trials,
        Measure(
            "P9",
            f"writes under a lost lease that were tried, and refused: {role}",
            refused,
            relation="report",
            size=len(trials),
            evidence="" if refused else "none was tried: the fence had nothing to refuse",
        ),
        Measure(
            "P9",
            f"of the lost leases those under which the stopped {role} had written",
            used,
            relation="report",
            size=len(trials),
        ),
    ]


def require_losses(measures: list[Measure], required: Mapping[str, int]) -> list[Measure]:
    """Return `measures`; `required` is the least number of lost leases by role.

    Raises DrillError when no measure is a violation and a role lost too few leases.
    """
    if any(measure.is_violation for measure in measures):
        return measures
    for role, count in required.items():
        lost = sum(measure.what == lease_loss_measure(role) for measure in measures)
        if lost < count:
            raise DrillError(f"paused processes lost {lost} leases of {role}, {count} are required")
    return measures
