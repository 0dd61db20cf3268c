"""What the pools can do, heard on the capacity topic; silence means nothing."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from core.clock import Clock
from jobs.expansion.windows import PoolCapacity
from topics.records.received import Received
from topics.records.records import Capacity
from topics.tail_readers.tail_thread import readable
from topics.tail_readers.topic_tail import TopicTail

_SILENCE_S_MAX: Final = 3.0  # a replica publishes at least every 0.2 s
_JOB_CLASS: Final = "bulk"
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class _Heard:
    """The newest word of a replica."""

    capacity: Capacity
    at_s: float


class PoolCapacities:
    """The newest capacity of every replica; safe for threads. Ages count from receipt."""

    def __init__(self, clock: Clock) -> None:
        """Know nothing yet."""
        self._clock = clock
        self._lock = threading.Lock()
        self._heard: dict[bytes, _Heard] = {}
        self._began_s: dict[str, float] = {}

    def hear(self, records: Iterable[Received]) -> None:
        """Take in records of the topic. Raises SchemaTooNewError."""
        for record, capacity in readable(Capacity, records):
            if record.key is None or (capacity and capacity.job_class != _JOB_CLASS):
                continue  # a replica of both classes tells of each by itself
            with self._lock:
                before = self._heard.pop(record.key, None)
                if capacity is None:
                    continue
                heard = _Heard(capacity, self._clock.monotonic_s())
                self._heard[record.key] = heard
                if before is None or before.capacity.epoch != capacity.epoch:
                    self._began_s[capacity.pool] = heard.at_s

    def began_s(self) -> dict[str, float]:
        """Return when a replica of each pool was last heard for the first time, or anew.

        That is: since it began, was given other batches to read, or had fallen silent.
        """
        with self._lock:
            return dict(self._began_s)

    def pools(self) -> dict[str, PoolCapacity]:
        """Return the pools with a replica that is available and was heard lately."""
        oldest_s = self._clock.monotonic_s() - _SILENCE_S_MAX
        with self._lock:
            self._heard = {key: h for key, h in self._heard.items() if h.at_s > oldest_s}
            capacities = [heard.capacity for heard in self._heard.values()]
        return sum_by_pool(capacities)


def sum_by_pool(capacities: Iterable[Capacity]) -> dict[str, PoolCapacity]:
    """Return what the available replicas of each pool can do together."""
    pools: dict[str, PoolCapacity] = {}
    for capacity in capacities:
        if capacity.available:
            known = pools.get(capacity.pool, PoolCapacity(0.0, 0))
            pools[capacity.pool] = PoolCapacity(
                known.items_per_s + max(0.0, capacity.items_per_s),
                known.concurrency + max(0, capacity.concurrency),
            )
    return pools


def read_capacities(tail: TopicTail, capacities: PoolCapacities) -> None:
    """Take in what has arrived, waiting a moment for it. Raises SchemaTooNewError."""
    capacities.hear(tail.poll(_POLL_S))
