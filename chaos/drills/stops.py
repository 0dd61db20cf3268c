"""P9: what a process lost while it was stopped, and whether it wrote there all the same."""

from collections.abc import Iterable
from typing import NamedTuple

from chaos import evidence
from chaos.drills.setting import Setting
from chaos.failures import DrillError
from chaos.judges.fencing import LeaseStep, Loss, losses
from chaos.measures import Measure
from chaos.reporting import LOST


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


def judge_stops(setting: Setting, stops: Iterable[Stop]) -> list[Measure]:
    """Return a trial for each lease that a stopped process lost, and how many were in use.

    Whether a process that was let go on tried to write nobody can tell: a write that is refused
    leaves no trace. One that had written under a lease was in the middle of it.
    """
    steps = evidence.lease_steps(setting.running.engine)
    trials, used = [], 0
    for stop in stops:
        lost = lost_in(steps, stop)
        used += sum(loss.was_used for loss in lost)
        setting.note(f"{stop.role} of {stop.host}, stopped, lost {len(lost)} leases")
        for loss in lost:
            told = f"stopped: {stop.role} of {stop.host}; {loss.job}" if loss.late_writes else ""
            trials.append(Measure(promise="P9", what=LOST, value=loss.late_writes, evidence=told))
    in_use = Measure(
        promise="P9",
        what="of the lost leases those under which the stopped process had written",
        value=used,
        relation="report",
        size=len(trials),
    )
    return [*trials, in_use]


def with_enough_losses(measures: list[Measure], wanted: int) -> list[Measure]:
    """Return `measures`. Raises DrillError when they show nothing broken, and too few losses."""
    lost = sum(measure.what == LOST for measure in measures)
    if lost < wanted and not any(measure.breaks_a_promise for measure in measures):
        raise DrillError(f"stopped processes lost {lost} leases of the {wanted} wanted")
    return measures
