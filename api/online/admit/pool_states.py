"""Capacity of each pool for online calls, as the replicas report it."""

from typing import Final

from jobs.expansion.pool_capacity import sum_by_pool
from jobs.expansion.windows import PoolCapacity
from topics.records.received_record import ReceivedRecord
from topics.records.records import Capacity
from topics.tail_readers.tail_reader_thread import decode_records

SILENCE_S_MAX: Final = 3.0
"""A replica reports at least every second. One without a report for this long is unavailable."""

_JOB_CLASS: Final = "interactive"
_NEWEST_WEIGHT: Final = 0.1  # of the newest call in the moving average


class PoolStates:
    """The newest capacity report of every replica.

    One thread calls `apply_records`; any thread may call the other methods.
    """

    def __init__(self, *, since_s: float) -> None:
        """`since_s`: monotonic time from which on the topic is read."""
        self._since_s = since_s
        self._reports: dict[str, tuple[Capacity, float]] = {}
        self._pools: dict[str, PoolCapacity] = {}  # replaced as a whole, so readers need no lock
        self._last_seen_s: dict[str, float] = {}  # by pool, of any report

    def apply_records(self, records: list[ReceivedRecord], *, now_s: float) -> None:
        """Apply records that arrived now, and drop silent replicas. Raises SchemaTooNewError."""
        for _, capacity in decode_records(Capacity, records):
            if capacity is None:
                continue
            self._last_seen_s[capacity.pool] = now_s
            if capacity.job_class == _JOB_CLASS:
                self._reports[capacity.replica_id] = (capacity, now_s)
        self._reports = {
            replica: (capacity, received_s)
            for replica, (capacity, received_s) in self._reports.items()
            if now_s - received_s <= SILENCE_S_MAX
        }
        self._pools = sum_by_pool(capacity for capacity, _ in self._reports.values())

    def find(self, pool: str) -> PoolCapacity | None:
        """Return the capacity of a pool, or None when none of its replicas accepts calls."""
        return self._pools.get(pool)

    def last_seen_s(self, pool: str) -> float:
        """Return when a replica of the pool last reported, draining replicas included."""
        return self._last_seen_s.get(pool, self._since_s)

    def is_warm(self, *, now_s: float) -> bool:
        """Whether the topic has been read for long enough that a missing report is meaningful."""
        return now_s - self._since_s > SILENCE_S_MAX


class ExecutionTimes:
    """Moving average of the execution time of calls, by pool."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def seconds(self, pool: str) -> float:
        """Return the average of a pool; 0 while it is unknown."""
        return self._seconds.get(pool, 0.0)

    def add(self, pool: str, execution_s: float) -> None:
        """Add a call that ended successfully."""
        average_s = self._seconds.get(pool, execution_s)
        self._seconds[pool] = average_s + (execution_s - average_s) * _NEWEST_WEIGHT
