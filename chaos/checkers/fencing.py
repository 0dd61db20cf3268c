"""P9: no write under an old lease is accepted."""

from collections.abc import Iterable

import msgspec


class LeaseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A claim of a lease, or a write that only its holder may do, in the database's order."""

    sequence: int
    job: str
    role: str
    user: str  # the database user: each host has its own
    claims: bool  # a claim; else a write under the lease
    epoch: int  # as the lease row had it
    is_fenced: bool = True  # its transaction locked the lease's row
    named_epoch: int | None = None  # the epoch that the write names, if any


def zombie_writes(events: Iterable[LeaseEvent]) -> list[LeaseEvent]:
    """Return the accepted writes that must have been refused.

    Such a write comes from a host that did not hold the lease, did not lock the lease's row, or
    names another epoch than the holder's. A claim whose epoch is not above all earlier ones is
    void.
    """
    last: dict[tuple[str, str], LeaseEvent] = {}
    wrong = []
    for event in sorted(events, key=lambda event: event.sequence):
        claim = last.get((event.job, event.role))
        if event.claims:
            if claim is None or event.epoch > claim.epoch:
                last[event.job, event.role] = event
        elif claim is None or not _is_by_holder(event, claim):
            wrong.append(event)
    return wrong


def _is_by_holder(write: LeaseEvent, claim: LeaseEvent) -> bool:
    named = write.epoch if write.named_epoch is None else write.named_epoch
    return write.is_fenced and write.user == claim.user and write.epoch == named == claim.epoch


class LostLease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that one host took from another."""

    job: str
    user: str  # the earlier holder
    sequence: int  # of the new claim
    late_writes: int  # of the earlier holder, accepted after the new claim
    was_used: bool = False  # the earlier holder wrote under it


def lost_leases(events: Iterable[LeaseEvent], role: str) -> list[LostLease]:
    """Return every lease of a role that changed hosts."""
    ordered = sorted(
        (event for event in events if event.role == role), key=lambda event: event.sequence
    )
    late = zombie_writes(ordered)
    holder: dict[str, str] = {}
    used: set[str] = set()
    found = []
    for event in ordered:
        if not event.claims:
            used.add(event.job)
            continue
        before = holder.get(event.job, event.user)
        if before != event.user:
            writes = sum(
                write.job == event.job and write.user == before and write.sequence > event.sequence
                for write in late
            )
            found.append(
                LostLease(
                    job=event.job,
                    user=before,
                    sequence=event.sequence,
                    late_writes=writes,
                    was_used=event.job in used,
                )
            )
        holder[event.job] = event.user
        used.discard(event.job)
    return found


class CursorMove(msgspec.Struct, frozen=True, kw_only=True):
    """An update of a job's cursor."""

    job: str
    old: int
    new: int
    sequence: int = 0  # in the order of the database


def backward_moves(events: Iterable[CursorMove]) -> list[CursorMove]:
    """Return the moves of a cursor towards the start of its file."""
    return [event for event in events if event.new < event.old]
