"""Why the items of a job that have no row wait. Computed when it is read; nothing is stored. Pure.

A reason is named only where rows, the cursor and the records of replicas prove it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class WaitingReason(StrEnum):
    """Why an item waits."""

    WINDOW = "window"
    """Not emitted: the tenant's window on the pool is used, or intake has not come to it yet."""

    POOL_FULL = "pool_full"
    """Not emitted: the tenant has nothing on the log of the pool, and other tenants have."""

    FAIR_TURN = "fair_turn"
    """Emitted: it waits for its turn in a batcher or at a replica, or runs."""

    NO_REPLICA = "no_replica"
    """No replica of the pool accepts bulk work."""

    NO_VERSION = "no_version"
    """Replicas of the pool accept bulk work, but none has the version of the job's model."""

    BACKOFF = "backoff"
    """An execution failed, and the next one is scheduled."""

    COPY = "copy"
    """It is a copy, and takes over the result of an identical item that has not ended."""

    PAUSED = "paused"
    """Its job is paused."""

    QUARANTINE = "quarantine"
    """Its tenant is in quarantine on the pool."""

    OFF_PEAK = "off_peak"
    """Not emitted: its job may not run before a time that has not come, or outside of hours."""

    @property
    def holds_emitted(self) -> bool:
        """Whether it is a reason for items, too, that were emitted before it came."""
        return self in (WaitingReason.PAUSED, WaitingReason.QUARANTINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBlock:
    """What keeps a whole job from running."""

    is_paused: bool = False
    is_quarantined: bool = False
    is_off_peak: bool = False  # not in its hours, or before the time from which it may run

    @property
    def reason(self) -> WaitingReason | None:
        """Why no item of the job may run, None if they may."""
        if self.is_quarantined:
            return WaitingReason.QUARANTINE
        if self.is_paused:
            return WaitingReason.PAUSED
        if self.is_off_peak:
            return WaitingReason.OFF_PEAK
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """What is known of the pool of a job."""

    has_replica: bool = True  # also while that is not known
    has_version: bool = True  # whether a replica has the version of the job, the same
    of_tenant: float | None = None  # outstanding items of the tenant; None: not known
    of_all: float = 0.0  # and of all tenants

    @property
    def without_replica(self) -> WaitingReason | None:
        """Why no replica may run an item, None if one may."""
        if not self.has_replica:
            return WaitingReason.NO_REPLICA
        return None if self.has_version else WaitingReason.NO_VERSION

    @property
    def on_log(self) -> WaitingReason:
        """Why an emitted item waits."""
        return self.without_replica or WaitingReason.FAIR_TURN

    @property
    def not_emitted(self) -> WaitingReason:
        """Why an item is not emitted."""
        if (reason := self.without_replica) is not None:
            return reason
        if self.of_tenant == 0 and self.of_all:
            return WaitingReason.POOL_FULL
        return WaitingReason.WINDOW


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemCounts:
    """Counts of the items of a job."""

    total: int
    ended: int  # with a row
    emitted: int = 0  # below the cursor
    copies: int = 0  # below the cursor, without a row
    retries: int = 0  # scheduled


def waiting_histogram(
    counts: ItemCounts, block: WaitingReason | None, pool: PoolView
) -> dict[str, int]:
    """Return how many items without a row wait for each reason; the sum is their number."""
    left = max(0, counts.total - counts.ended)
    if block is not None and block.holds_emitted:
        return _without_zeros({block: left})
    pending = min(left, max(0, counts.total - counts.emitted))
    copies = min(left - pending, max(0, counts.copies))
    retries = min(left - pending - copies, counts.retries)
    found: Counter[WaitingReason] = Counter()
    found[WaitingReason.COPY] += copies
    found[WaitingReason.BACKOFF] += retries
    found[block or pool.not_emitted] += pending
    found[pool.on_log] += left - pending - copies - retries
    return _without_zeros(found)


def _without_zeros(found: Mapping[WaitingReason, int]) -> dict[str, int]:
    return {reason.value: count for reason, count in sorted(found.items()) if count}
