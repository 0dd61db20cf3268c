"""Detects a batcher that is stalled though it could work: Faust can stop without an error.

Pure rules over observations; `periodic` takes them and ends the process.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The state of the process at one time; counts are since its start."""

    at_s: float  # monotonic
    lag: int | None  # uncommitted records of the assigned partitions; None: unknown
    received_count: int
    dispatched_count: int
    acknowledged_count: int
    committed_offsets: int  # sum over the assigned partitions
    buffered_count: int
    has_credit: bool  # for something that is buffered
    open_count: int  # delivered records that are not acknowledged
    is_full: bool
    rebalance_count: int


class Watchdog:
    """Measures how long nothing has progressed that should have, from periodic observations."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._previous: Observation | None = None
        self._last_commit: Observation | None = None
        self._stalled_since_s: float | None = None

    def commit_age_s(self, seen: Observation) -> float:
        """Return the seconds without a commit though records were acknowledged since the last.

        Without lag there is nothing to commit: the acknowledged records were on a revoked
        partition. A rebalance restarts the measure: the next owner commits what was acknowledged
        just before or reads it again, and records of unavailable pools lag meanwhile.
        """
        last = self._last_commit
        if (
            last is None
            or seen.lag == 0
            or seen.rebalance_count != last.rebalance_count
            or seen.committed_offsets != last.committed_offsets
            or seen.acknowledged_count == last.acknowledged_count
        ):
            self._last_commit = last = seen
        return seen.at_s - last.at_s

    def stall_s(self, seen: Observation) -> float:
        """Return the seconds in which work was possible and nothing progressed."""
        can_work = bool(seen.lag) and (
            seen.buffered_count == 0 or seen.has_credit or _can_read(seen)
        )
        before = self._previous
        has_progressed = before is None or (seen.received_count, seen.dispatched_count) != (
            before.received_count,
            before.dispatched_count,
        )
        self._previous = seen
        if has_progressed or not can_work:
            self._stalled_since_s = None
        elif self._stalled_since_s is None:
            self._stalled_since_s = seen.at_s
        return 0.0 if self._stalled_since_s is None else seen.at_s - self._stalled_since_s

    def is_stalled(self, seen: Observation) -> bool:
        """Whether the process should end and be restarted."""
        return max(self.stall_s(seen), self.commit_age_s(seen)) > self._limit_s


def _can_read(seen: Observation) -> bool:
    """Whether the topic has undelivered records and the queues accept them.

    Chunks that wait for unavailable pools do not matter: the records may be for other pools.
    """
    return seen.lag is not None and seen.lag > seen.open_count and not seen.is_full
