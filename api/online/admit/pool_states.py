"""What the replicas of each pool say they can take, as far as online calls go."""

from typing import Final

from jobs.expansion.pool_capacity import by_pool
from jobs.expansion.windows import PoolCapacity
from topics.records.received import Received
from topics.records.records import Capacity
from topics.tail_readers.tail_thread import readable

SILENCE_S_MAX: Final = 3.0
"""A replica repeats itself at least every second; one that is silent for this long is away."""

_JOB_CLASS: Final = "interactive"
_NEWEST_SHARE: Final = 0.1  # of the newest call in the smoothed time


class PoolStates:
    """The newest word of every replica. One thread writes, any may read `find`."""

    def __init__(self, *, since_s: float) -> None:
        """Nothing was heard; the topic is followed from monotonic time `since_s` on."""
        self._since_s = since_s
        self._heard: dict[str, tuple[Capacity, float]] = {}
        self._pools: dict[str, PoolCapacity] = {}  # replaced whole, so readers need no lock
        self._alive_s: dict[str, float] = {}  # a word of any replica of the pool

    def hear(self, records: list[Received], *, now_s: float) -> None:
        """Take in records that arrived now, and forget who is silent. Raises SchemaTooNewError."""
        for _, capacity in readable(Capacity, records):
            if capacity is None:
                continue
            self._alive_s[capacity.pool] = now_s
            if capacity.job_class == _JOB_CLASS:
                self._heard[capacity.replica_id] = (capacity, now_s)
        self._heard = {
            replica: (capacity, heard_s)
            for replica, (capacity, heard_s) in self._heard.items()
            if now_s - heard_s <= SILENCE_S_MAX
        }
        self._pools = by_pool(capacity for capacity, _ in self._heard.values())

    def find(self, pool: str) -> PoolCapacity | None:
        """Return what a pool can do, or None when no replica of it takes calls."""
        return self._pools.get(pool)

    def alive_s(self, pool: str) -> float:
        """Return when a pool last gave a sign of life, draining replicas included."""
        return self._alive_s.get(pool, self._since_s)

    def may_tell(self, *, now_s: float) -> bool:
        """Whether silence means absence already: it does after a moment of listening."""
        return now_s - self._since_s > SILENCE_S_MAX


class ExecutionTimes:
    """What a call of each pool took in its engine lately, smoothed."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._seconds: dict[str, float] = {}

    def seconds(self, pool: str) -> float:
        """Return it; 0 while it is unknown."""
        return self._seconds.get(pool, 0.0)

    def ended(self, pool: str, execution_s: float) -> None:
        """Take in one call that ended well."""
        known_s = self._seconds.get(pool, execution_s)
        self._seconds[pool] = known_s + (execution_s - known_s) * _NEWEST_SHARE
