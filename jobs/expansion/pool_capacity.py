"""The capacity of each pool, from the records of its replicas on the `capacity` topic."""

import threading
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from core.bodies.output_estimator import OUTPUT_TOKENS_PRIOR
from core.clock import Clock
from jobs.expansion.pool_versions import versions_by_pool
from jobs.expansion.windows import PoolCapacity
from topics.records.eligibility import is_starting
from topics.records.received_record import ReceivedRecord
from topics.records.records import Capacity, JobRef
from topics.tail_readers.tail_reader_thread import decode_records

POLL_INTERVAL_S: Final = 0.1
"""Time for which readers of all pools collect records of `capacity`."""

_RECORD_AGE_S_MAX: Final = 3.0  # a replica publishes every second
_JOB_CLASS: Final = "bulk"
_MEANS_MAX: Final = 1_000  # replicas whose means are kept; the oldest are forgotten

_OutputMeans = dict[tuple[str, UUID | None, str], float]


class PoolCapacities:
    """The newest capacity of every replica. Thread-safe. Ages count from receipt."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._newest: dict[bytes, tuple[Capacity, float]] = {}  # with the time of receipt
        self._joined_s: dict[str, float] = {}
        self._in_flight: dict[bytes, tuple[frozenset[UUID], float]] = {}  # with the time of receipt
        self._output_means: dict[bytes, _OutputMeans] = {}  # by replica, the newest last

    def update(self, records: Iterable[ReceivedRecord]) -> None:
        """Apply records of the topic. Raises SchemaTooNewError."""
        for record, capacity in decode_records(Capacity, records):
            self._record_in_flight_jobs(record.key, capacity)
            self._record_output_means(record.key, capacity)
            if record.key is None or (capacity and capacity.job_class != _JOB_CLASS):
                continue  # a replica of both classes publishes a record for each
            with self._lock:
                before = self._newest.pop(record.key, None)
                if capacity is None:
                    continue
                now_s = self._clock.monotonic_s()
                self._newest[record.key] = capacity, now_s
                if is_starting(capacity):
                    continue  # it has not joined
                if before is None or before[0].epoch != capacity.epoch:
                    self._joined_s[capacity.pool] = now_s

    def joined_s(self) -> dict[str, float]:
        """Return when the newest replica of each pool joined, in monotonic seconds.

        A replica joins when it has its model, gets other partitions, or publishes again after a
        silence.
        """
        with self._lock:
            return dict(self._joined_s)

    def pools(self) -> dict[str, PoolCapacity]:
        """Return the pools with an available replica that published recently."""
        return sum_by_pool(self._recent())

    def versions(self) -> dict[str, frozenset[str]]:
        """Return the versions that pools have warm; see `versions_by_pool`."""
        return versions_by_pool(self._recent())

    def batcher_count(self) -> int:
        """Return how many batchers the replicas grant items to."""
        return len({batcher_id for capacity in self._recent() for batcher_id in capacity.granted})

    def in_flight_jobs(self) -> frozenset[UUID]:
        """Return the jobs of which a live replica, of either class, has had items for a while."""
        oldest_s = self._clock.monotonic_s() - _RECORD_AGE_S_MAX
        with self._lock:
            self._in_flight = {k: r for k, r in self._in_flight.items() if r[1] > oldest_s}
            return frozenset().union(*(job_ids for job_ids, _ in self._in_flight.values()))

    def expected_output(self, job: JobRef) -> float:
        """Return the expected tokens of a sequence of a job, as the replicas of its pool learned.

        Means of its tenant come first, then those of all tenants, then the prior.
        """
        with self._lock:
            for tenant_id in (job.tenant_id, None):
                key = (job.pool, tenant_id, job.endpoint)
                found = [means[key] for means in self._output_means.values() if key in means]
                if found:
                    return sum(found) / len(found)
        return OUTPUT_TOKENS_PRIOR

    def _record_output_means(self, key: bytes | None, capacity: Capacity | None) -> None:
        if key is None or capacity is None or capacity.output_means is None:
            return
        means = {(capacity.pool, m.tenant_id, m.endpoint): m.tokens for m in capacity.output_means}
        with self._lock:
            self._output_means.pop(key, None)
            self._output_means[key] = means
            if len(self._output_means) > _MEANS_MAX:
                del self._output_means[next(iter(self._output_means))]

    def _record_in_flight_jobs(self, key: bytes | None, capacity: Capacity | None) -> None:
        """Keep the jobs of a replica's newest record that names jobs, while it publishes."""
        if key is None:
            return
        with self._lock:
            if capacity is None:
                self._in_flight.pop(key, None)
            elif capacity.in_flight_jobs is not None:
                self._in_flight[key] = frozenset(capacity.in_flight_jobs), self._clock.monotonic_s()

    def _recent(self) -> list[Capacity]:
        oldest_s = self._clock.monotonic_s() - _RECORD_AGE_S_MAX
        with self._lock:
            self._newest = {k: r for k, r in self._newest.items() if r[1] > oldest_s}
            return [capacity for capacity, _ in self._newest.values()]


def sum_by_pool(capacities: Iterable[Capacity]) -> dict[str, PoolCapacity]:
    """Return the total capacity of the available replicas of each pool."""
    rates: dict[str, float] = {}
    places: dict[str, int] = {}
    for capacity in capacities:
        if capacity.available:
            pool = capacity.pool
            rates[pool] = rates.get(pool, 0.0) + max(0.0, capacity.items_per_s)
            places[pool] = places.get(pool, 0) + max(0, capacity.concurrency)
    return {pool: PoolCapacity(rate, places[pool]) for pool, rate in rates.items()}
