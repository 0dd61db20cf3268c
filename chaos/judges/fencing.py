"""P9: nothing that was written under an old lease was accepted."""

from collections.abc import Iterable

import msgspec


class LeaseStep(msgspec.Struct, frozen=True, kw_only=True):
    """A claim of a lease, or a write that only its holder may do, in the database's order."""

    sequence: int
    job: str
    role: str
    user: str  # the database user: each host has its own
    claims: bool  # a new holder; else a write of what the lease protects
    epoch: int  # as the lease row had it


def zombie_writes(steps: Iterable[LeaseStep]) -> list[LeaseStep]:
    """Return writes by a host that did not hold the lease when they were accepted."""
    holder: dict[tuple[str, str], str] = {}
    wrong = []
    for step in sorted(steps, key=lambda step: step.sequence):
        place = step.job, step.role
        if step.claims:
            holder[place] = step.user
        elif holder.get(place) not in (None, step.user):
            wrong.append(step)
    return wrong


def taken_from(steps: Iterable[LeaseStep], role: str, user: str) -> list[LeaseStep]:
    """Return the claims by which others took leases of a role that `user` had held until then."""
    holder: dict[str, str] = {}
    taken = []
    for step in sorted(steps, key=lambda step: step.sequence):
        if step.claims and step.role == role:
            if holder.get(step.job) == user != step.user:
                taken.append(step)
            holder[step.job] = step.user
    return taken


class CursorStep(msgspec.Struct, frozen=True, kw_only=True):
    """A move of a job's cursor."""

    job: str
    old: int
    new: int


def cursors_that_went_back(steps: Iterable[CursorStep]) -> list[CursorStep]:
    """Return the moves of a cursor towards the beginning of its file."""
    return [step for step in steps if step.new < step.old]
