"""P9: nothing that was written under an old lease was accepted."""

from collections.abc import Iterable

import msgspec


class LeaseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A claim of a lease, or a write that only its holder may do, in the database's order."""

    sequence: int
    job: str
    role: str
    user: str  # the database user: each host has its own
    claims: bool  # a new holder; else a write of what the lease protects
    epoch: int  # as the lease row had it
    is_fenced: bool = True  # its transaction held the lease's row
    named_epoch: int | None = None  # under which it was prepared, where the write tells


def zombie_writes(steps: Iterable[LeaseEvent]) -> list[LeaseEvent]:
    """Return writes that were accepted and must not have been.

    That is a write by a host that did not hold the lease then, without a look at the lease, or
    under another epoch than the holder's. A claim whose epoch is not above all before it holds
    nothing.
    """
    last: dict[tuple[str, str], LeaseEvent] = {}
    wrong = []
    for step in sorted(steps, key=lambda step: step.sequence):
        claim = last.get((step.job, step.role))
        if step.claims:
            if claim is None or step.epoch > claim.epoch:
                last[step.job, step.role] = step
        elif claim is None or not _is_by_holder(step, claim):
            wrong.append(step)
    return wrong


def _is_by_holder(write: LeaseEvent, claim: LeaseEvent) -> bool:
    named = write.epoch if write.named_epoch is None else write.named_epoch
    return write.is_fenced and write.user == claim.user and write.epoch == named == claim.epoch


class LostLease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that one host took from another."""

    job: str
    user: str  # who had it
    sequence: int  # of the claim
    late_writes: int  # accepted of who had it, afterwards
    was_used: bool = False  # who had it had written under it


def lost_leases(steps: Iterable[LeaseEvent], role: str) -> list[LostLease]:
    """Return every lease of a role that changed hands."""
    ordered = sorted((step for step in steps if step.role == role), key=lambda step: step.sequence)
    late = zombie_writes(ordered)
    holder: dict[str, str] = {}
    used: set[str] = set()
    found = []
    for step in ordered:
        if not step.claims:
            used.add(step.job)
            continue
        before = holder.get(step.job, step.user)
        if before != step.user:
            writes = sum(
                write.job == step.job and write.user == before and write.sequence > step.sequence
                for write in late
            )
            found.append(
                LostLease(
                    job=step.job,
                    user=before,
                    sequence=step.sequence,
                    late_writes=writes,
                    was_used=step.job in used,
                )
            )
        holder[step.job] = step.user
        used.discard(step.job)
    return found


class CursorMove(msgspec.Struct, frozen=True, kw_only=True):
    """A move of a job's cursor."""

    job: str
    old: int
    new: int
    sequence: int = 0  # in the order of the database


def backward_moves(steps: Iterable[CursorMove]) -> list[CursorMove]:
    """Return the moves of a cursor towards the beginning of its file."""
    return [step for step in steps if step.new < step.old]
