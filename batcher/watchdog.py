"""Ends a process that stands still though it could work: Faust has ways to stop without an error.

Pure rules over observations; who observes and who exits is elsewhere.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one look at the process saw; counts are since its start."""

    at_s: float  # monotonic
    lag: int | None  # records of our own partitions not committed, by the broker; None: unknown
    received_count: int
    dispatched_count: int
    acknowledged_count: int
    committed_offsets: int  # sum over our partitions
    held_count: int
    has_credit: bool  # for something that is held
    open_count: int  # records that are here and not acknowledged
    is_full: bool
    rebalance_count: int


class Watchdog:
    """Says for how long nothing has moved that should have; one observation a look."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s` is the longest standstill."""
        self._limit_s = limit_s
        self._moved: Observation | None = None
        self._committed: Observation | None = None
        self._work_since_s: float | None = None

    def commit_age_s(self, seen: Observation) -> float:
        """Return the seconds for which no offset moved though records were acknowledged since.

        Without lag there is none to move: what was acknowledged lay on a partition that went away.
        A rebalance begins anew: what was acknowledged just before it is committed by the next owner
        or comes again, and what waits for pools that are away lags meanwhile.
        """
        last = self._committed
        if (
            last is None
            or seen.lag == 0
            or seen.rebalance_count != last.rebalance_count
            or seen.committed_offsets != last.committed_offsets
            or seen.acknowledged_count == last.acknowledged_count
        ):
            self._committed = last = seen
        return seen.at_s - last.at_s

    def standstill_s(self, seen: Observation) -> float:
        """Return the seconds in which there was work and room, and nothing moved."""
        possible = bool(seen.lag) and (seen.held_count == 0 or seen.has_credit or _could_read(seen))
        before = self._moved
        moved = before is None or (seen.received_count, seen.dispatched_count) != (
            before.received_count,
            before.dispatched_count,
        )
        self._moved = seen
        if moved or not possible:
            self._work_since_s = None
        elif self._work_since_s is None:
            self._work_since_s = seen.at_s
        return 0.0 if self._work_since_s is None else seen.at_s - self._work_since_s

    def is_stuck(self, seen: Observation) -> bool:
        """Whether the process should end and be started again."""
        return max(self.standstill_s(seen), self.commit_age_s(seen)) > self._limit_s


def _could_read(seen: Observation) -> bool:
    """Whether there is more on the log than what is here, and room for it.

    What is held for pools that are away says nothing of the others.
    """
    return seen.lag is not None and seen.lag > seen.open_count and not seen.is_full
