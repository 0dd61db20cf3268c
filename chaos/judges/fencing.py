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


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that one host took from another."""

    job: str
    user: str  # who had it
    sequence: int  # of the claim
    late_writes: int  # accepted of who had it, afterwards


def losses(steps: Iterable[LeaseStep], role: str) -> list[Loss]:
    """Return every lease of a role that changed hands."""
    ordered = sorted((step for step in steps if step.role == role), key=lambda step: step.sequence)
    late = zombie_writes(ordered)
    holder: dict[str, str] = {}
    found = []
    for step in ordered:
        if not step.claims:
            continue
        before = holder.get(step.job, step.user)
        if before != step.user:
            writes = sum(
                write.job == step.job and write.user == before and write.sequence > step.sequence
                for write in late
            )
            found.append(
                Loss(job=step.job, user=before, sequence=step.sequence, late_writes=writes)
            )
        holder[step.job] = step.user
    return found


class CursorStep(msgspec.Struct, frozen=True, kw_only=True):
    """A move of a job's cursor."""

    job: str
    old: int
    new: int
    sequence: int = 0  # in the order of the database


def cursors_that_went_back(steps: Iterable[CursorStep]) -> list[CursorStep]:
    """Return the moves of a cursor towards the beginning of its file."""
    return [step for step in steps if step.new < step.old]
