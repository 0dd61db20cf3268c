"""P9: what a process lost while it was stopped, and whether it wrote there all the same."""

from collections.abc import Iterable
from typing import NamedTuple

from chaos import evidence
from chaos.drills.setting import Setting
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
    """Return a trial for each lease that a stopped process lost."""
    steps = evidence.lease_steps(setting.running.engine)
    trials = []
    for stop in stops:
        lost = lost_in(steps, stop)
        setting.note(f"{stop.role} of {stop.host}, stopped, lost {len(lost)} leases")
        for loss in lost:
            told = f"stopped: {stop.role} of {stop.host}; {loss.job}" if loss.late_writes else ""
            trials.append(Measure(promise="P9", what=LOST, value=loss.late_writes, evidence=told))
    return trials
