"""Admission: the load of the pools, and refusal of calls whose wait would exceed their time."""

from dataclasses import dataclass
from typing import Final

from api.http.errors import ApiError
from api.online.call_errors import queue_full
from api.online.settings import OnlineSettings
from jobs.expansion.pool_capacity import sum_by_pool
from jobs.expansion.windows import PoolCapacity
from topics.records.received_record import ReceivedRecord
from topics.records.records import Capacity
from topics.tail_readers.tail_reader_thread import decode_records


@dataclass(frozen=True, slots=True)
class OpenCallCounts:
    """Open calls of this process, without the new one."""

    total: int
    of_tenant: int
    of_pool: int


def find_refusal(
    counts: OpenCallCounts,
    settings: OnlineSettings,
    pool: PoolCapacity | None,
    *,
    execution_s: float,
    time_left_s: float,
) -> ApiError | None:
    """Return why a call is refused, or None when it is admitted.

    `pool` is None while the pool's capacity is unknown. `execution_s` is the recent execution time
    of a call in the pool.
    """
    if counts.of_tenant >= settings.open_calls_per_tenant_max:
        return queue_full(429, "Your organization has too many calls open.", 1.0)
    if counts.total >= settings.open_calls_max:
        return queue_full(503, "Too many calls are open.", 1.0)
    wait_s = predicted_wait_s(counts.of_pool, pool, execution_s)
    if wait_s > time_left_s:
        return queue_full(503, "The call would not be served in time.", wait_s - time_left_s)
    return None


def predicted_wait_s(open_calls: int, pool: PoolCapacity | None, execution_s: float) -> float:
    """Return how long one more call would wait for its execution; 0 while that is unknown.

    Calls beyond the pool's concurrency wait. They are served at the higher of two rates: the
    measured one, which is low when the pool had little to do, and concurrency per execution time.
    """
    if pool is None or execution_s <= 0:
        return 0.0
    items_per_s = max(pool.items_per_s, pool.concurrency / execution_s)
    if items_per_s <= 0:
        return 0.0
    return max(0, open_calls - pool.concurrency) / items_per_s


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
