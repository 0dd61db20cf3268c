"""Publishes how many items this replica can accept: none while its pool is unavailable.

What batchers need to send goes to `grants`, often; the public state goes to `capacity` (ADR 87).
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.clock import Clock, DatabaseTime
from gpu_consumers import metrics
from gpu_consumers.flow_control.capacity_schedule import INTERVAL_S_MIN, CapacitySchedule
from gpu_consumers.flow_control.grant_changes import BUSY_REPEAT_S, grants_have_changed
from gpu_consumers.flow_control.grant_sender import GrantSender
from gpu_consumers.flow_control.grants import (
    Grants,
    MeasuredRate,
    bulk_limit,
    online_limit,
    publish_threshold,
)
from gpu_consumers.flow_control.in_flight_jobs import InFlightJobs
from gpu_consumers.flow_control.output_samples import OutputSamples
from gpu_consumers.flow_control.replica_state import PublishedState
from gpu_consumers.flow_control.token_load import TokenLoad
from gpu_consumers.flow_control.token_usage import TokenUsage
from gpu_consumers.flow_control.warm_model import ANY_VERSION, WarmModel
from topics.clients.offset_tracker import Partition
from topics.clients.producer import RecordProducer
from topics.records.catalogue import CAPACITY
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Batch, Capacity, Demand, ReplicaGrants
from topics.tail_readers.tail_reader_thread import decode_records

_LOG = logging.getLogger(__name__)
_BACKOFF_S_MIN = 0.5
_PROBE_ITEMS = 1

REPEAT_S = 0.2
"""Interval of grants, of bulk items if they have changed by enough. Each record holds the whole
state."""

IDLE_REPEAT_S = 1.0
"""The interval while nothing runs; batchers treat a replica as silent after three times that."""

_TIMER_S_MIN = 0.001
"""Shortest wait: the timers of an event loop may fire a little early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaIdentity:
    """The replica, job class and model of capacity records; a replica of both classes has two."""

    replica_id: str
    pool: str
    job_class: str
    batch_items: int
    served: WarmModel = ANY_VERSION


class CapacityPublisher:
    """Counts items in and out and publishes grants and capacity, on changes and periodically.

    All methods are called on the event loop.
    """

    def __init__(  # noqa: PLR0913  each one is an option
        self,
        identity: ReplicaIdentity,
        producer: RecordProducer,
        concurrency: Callable[[], int],
        clock: Clock,
        *,
        database_time: DatabaseTime | None = None,
        has_suspects: Callable[[], bool] = lambda: False,
        state: PublishedState | None = None,
    ) -> None:
        """Publish nothing until `run`.

        `concurrency` is called at each round, because an engine may adapt it. `database_time`
        receives the time that batchers publish. `has_suspects` returns whether an item here may
        crash the process: batchers then prefer other replicas. `state` is that of the replica,
        shared by its classes; None: it is warm, and its GPU is not known.
        """
        self._state = state or PublishedState()
        self._state.on_change.append(self.publish_soon)
        self._load = TokenLoad()
        self._database_time = database_time
        self._identity, self._producer = identity, producer
        self._concurrency, self._clock, self._has_suspects = concurrency, clock, has_suspects
        self._grants = Grants()
        self._in_flight_jobs = InFlightJobs()
        self.output_samples = OutputSamples()
        self.usage = TokenUsage(producer, identity.replica_id, identity.pool, identity.job_class)
        self._epoch = int(clock.wall_s() * 1000) << 12  # leaves 12 bits for epochs of this process
        self._partitions: list[int] = []
        self._in_flight = 0
        self._ended = 0
        self._unpublished = 0  # ended items
        self._publish_threshold = 1
        self._rate = MeasuredRate()
        self._schedule = CapacitySchedule()
        self._grant_sender = GrantSender(producer, identity.replica_id, identity.job_class)
        self._granted_s = 0.0  # when grants were last computed
        self._published: ReplicaGrants | None = None
        self._published_s = 0.0  # when those were sent
        self._limit_override: int | None = None
        self._wake = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Items that have arrived and not ended."""
        return self._in_flight

    @property
    def ended_count(self) -> int:
        """Items that have ended since the start of the process."""
        return self._ended

    @property
    def items_per_s(self) -> float:
        """The measured rate of this replica; 0 while unknown."""
        return self._rate.items_per_s

    def start_epoch(self, partitions: list[Partition]) -> None:
        """Start a new epoch with the partitions that are assigned now."""
        self._partitions = sorted(number for _, number in partitions)
        self._epoch += 1
        self._grants.start_epoch(self._in_flight)
        self._wake.set()

    def record_arrival(self, batch: Batch, count: int) -> None:
        """Count the `count` items of a delivered batch as in flight."""
        now_s = self._clock.monotonic_s()
        self._in_flight += count
        self._in_flight_jobs.add(batch, count, now_s=now_s)
        self._load.add(batch, count)
        self._rate.mark_busy(self._in_flight, now_s=now_s)
        if self._is_of_epoch(batch):
            self._grants.add_arrived(batch.batcher_id, count)
        else:
            self._grants.foreign_in_flight += count

    def record_end(self, batch: Batch, count: int) -> None:
        """Count `count` items of `batch` as ended, whether answered, dropped or requeued."""
        self._in_flight -= count
        self._in_flight_jobs.remove(batch, count)
        self._load.remove(batch, count)
        if not self._in_flight:
            self._rate.mark_idle(now_s=self._clock.monotonic_s())
        self._ended += count
        self._unpublished += count
        if self._is_of_epoch(batch):
            self._grants.add_finished(batch.batcher_id, count)
        else:
            self._grants.foreign_in_flight = max(0, self._grants.foreign_in_flight - count)
        if self._unpublished >= self._publish_threshold:
            self._wake.set()

    def record_answers(self, count: int) -> None:
        """Count items that the engine has answered: only they are throughput."""
        self._rate.add_answered(count)

    def publish_soon(self) -> None:
        """Publish now: a published value other than the grants has changed."""
        self._wake.set()

    def limit_items(self, limit: int | None) -> None:
        """Keep at most `limit` items here, 0 for none; None removes the limit."""
        if limit != self._limit_override:
            self._limit_override = limit
            self._wake.set()

    def apply_demand(self, records: list[ReceivedRecord]) -> None:
        """Apply demand records of batchers."""
        for _, demand in decode_records(Demand, records):
            if demand is None:
                continue
            now_s = self._clock.monotonic_s()
            if demand.now_s and self._database_time is not None:
                self._database_time.add_sample(demand.now_s, monotonic_s=now_s)
            if demand.job_class == self._identity.job_class:
                pool, batcher_id = self._identity.pool, demand.batcher_id
                waiting, share = demand.waiting.get(pool, 0), demand.shares.get(pool)
                is_known = batcher_id in self._grants.accounts
                self._grants.set_demand(batcher_id, waiting, share, now_s=now_s)
                if not is_known:
                    self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        measured_s = self._granted_s = self._clock.monotonic_s()
        wait_s = self._grants_wait_s(measured_s)
        while True:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            now_s = self._clock.monotonic_s()
            if now_s - measured_s >= REPEAT_S:
                self._measure(now_s)
                measured_s = now_s
            if self._wake.is_set() or self._grants_wait_s(now_s) <= 0:
                self._publish_grants(now_s, is_repetition=not self._wake.is_set())
            capacity_wait_s = max(_TIMER_S_MIN, self._publish_capacity(now_s))
            wait_s = min(self._grants_wait_s(now_s), capacity_wait_s)

    def publish_withdrawal(self) -> None:
        """Publish that this replica accepts nothing any more; its last records."""
        self._limit_override = 0
        now_s = self._clock.monotonic_s()
        self._publish_grants(now_s)
        self._send_capacity(self._capacity(now_s), now_s)
        self.usage.publish()

    def _measure(self, now_s: float) -> None:
        closed = self._rate.update(self._in_flight, concurrency=self._concurrency(), now_s=now_s)
        if closed is not None:
            self.usage.rates.close_window(closed.busy_s, was_full=closed.was_full)

    def _limit(self) -> int:
        if self._limit_override is not None:
            return self._limit_override
        if self._identity.job_class == "interactive":
            return online_limit(self._concurrency(), self.items_per_s)
        return bulk_limit(self._concurrency(), self.items_per_s, self._identity.batch_items)

    def _grants_wait_s(self, now_s: float) -> float:
        repeat_s = REPEAT_S if self._in_flight else IDLE_REPEAT_S
        wait_s = self._granted_s + repeat_s - now_s
        return wait_s if wait_s > _TIMER_S_MIN else 0.0

    def _publish_grants(self, now_s: float, *, is_repetition: bool = False) -> None:
        """Send grants. A repetition is left out while nothing has changed by much."""
        limit, identity = self._limit(), self._identity
        self._granted_s = now_s
        grants = ReplicaGrants(
            replica_id=identity.replica_id,
            epoch=self._epoch,
            pool=identity.pool,
            job_class=identity.job_class,
            partitions=self._partitions,
            granted=self._grants.compute_grants(limit, now_s=now_s),
            concurrency=self._concurrency(),
            available=limit > 0 and bool(self._partitions),
            in_danger=self._has_suspects(),
            versions=identity.served.versions,
            adapters_max=identity.served.adapters_max,
        )
        if is_repetition and not self._is_due(grants, limit, now_s):
            return
        self._unpublished = 0
        self._publish_threshold = publish_threshold(limit, identity.job_class)
        if self._grant_sender.send(grants):  # without space a newer record will be sent
            self._published, self._published_s = grants, now_s

    def _is_due(self, grants: ReplicaGrants, limit: int, now_s: float) -> bool:
        if (
            self._published is None
            or not self._in_flight
            or self._identity.job_class == "interactive"
            or now_s - self._published_s >= BUSY_REPEAT_S - _TIMER_S_MIN
        ):
            return True
        arrived = {name: account.arrived for name, account in self._grants.accounts.items()}
        return grants_have_changed(self._published, grants, arrived=arrived, limit=limit)

    def _publish_capacity(self, now_s: float) -> float:
        """Send the public state if it is due; return after how many seconds to call again."""
        if (wait_s := self._schedule.wait_s(now_s=now_s)) > 0:
            return wait_s
        if not self._producer.has_space(CAPACITY.name, 0):
            return INTERVAL_S_MIN
        capacity = self._capacity(now_s)
        if self._schedule.is_due(capacity, now_s=now_s):
            self._send_capacity(capacity, now_s)
        return self._schedule.repeat_wait_s(now_s=now_s)

    def _capacity(self, now_s: float) -> Capacity:
        """Return the record; the one that holds jobs or means must be sent."""
        limit, state, use = self._limit(), self._state, self._state.engine_use()
        return Capacity(
            replica_id=self._identity.replica_id,
            epoch=self._epoch,
            pool=self._identity.pool,
            job_class=self._identity.job_class,
            partitions=self._partitions,
            granted=self._grants.compute_grants(limit, now_s=now_s),
            items_per_s=self.items_per_s,
            concurrency=self._concurrency(),
            available=limit > 0 and bool(self._partitions),
            in_danger=self._has_suspects(),
            in_flight_jobs=self._in_flight_jobs.job_ids_to_publish(now_s=now_s),
            output_means=self.output_samples.means_to_publish(now_s=now_s),
            compute=self.usage.rates.measured(),
            models=self._identity.served.loaded(),
            lifecycle=state.lifecycle.value,
            gpu_type=state.place.gpu_type,
            zone=state.place.zone,
            spot=state.place.is_spot,
            load_tokens=self._load.tokens,
            tokens_per_s=self.usage.rates.tokens_per_s,
            waiting=use.waiting,
            kv_use=use.kv_use,
            leaves_at_s=state.leaves_at_s,
        )

    def _send_capacity(self, capacity: Capacity, now_s: float) -> None:
        if not self._producer.has_space(CAPACITY.name, 0):
            return
        identity = self._identity
        self._schedule.mark_published(capacity, now_s=now_s)
        self._producer.send(
            CAPACITY.name,
            encode(capacity),
            partition=0,
            key=f"{identity.pool}:{identity.replica_id}:{identity.job_class}".encode(),
            headers=kind_headers(Capacity),
        )

    def _is_of_epoch(self, batch: Batch) -> bool:
        return batch.replica_id == self._identity.replica_id and batch.epoch == self._epoch


class PoolHealth:
    """Withdraws the credit of every class while the pool is unavailable, and probes the pool.

    Both classes of a replica share its upstream.
    """

    def __init__(self, capacities: Sequence[CapacityPublisher], *, backoff_s_max: float) -> None:
        self._capacities, self._backoff_s_max = capacities, backoff_s_max
        self._backoff_s = _BACKOFF_S_MIN
        self._is_available = True
        self._is_closed = False
        self._probe: asyncio.TimerHandle | None = None
        metrics.POOL_AVAILABLE.set(1)

    def mark_unavailable(self) -> None:
        """Withdraw the credit, then probe the pool with one item of each class."""
        if self._is_closed:
            return
        self._is_available = False
        metrics.POOL_AVAILABLE.set(0)
        self._limit_items(0)
        if self._probe is None:
            _LOG.warning("the pool is away", extra={"retry_in_s": self._backoff_s})
            loop = asyncio.get_running_loop()
            self._probe = loop.call_later(self._backoff_s, self._start_probe)
            self._backoff_s = min(self._backoff_s * 2, self._backoff_s_max)

    def mark_available(self) -> None:
        """Restore the credit, unless the answer is to a request from before the outage."""
        if self._is_available or self._is_closed or self._probe is not None:
            return
        self._is_available = True
        metrics.POOL_AVAILABLE.set(1)
        self._backoff_s = _BACKOFF_S_MIN
        self._limit_items(None)

    def close(self) -> None:
        """Withdraw the credit for good: the replica stops."""
        self._is_closed = True
        self._limit_items(0)

    def _start_probe(self) -> None:
        self._probe = None
        if not self._is_closed:
            self._limit_items(_PROBE_ITEMS)

    def _limit_items(self, limit: int | None) -> None:
        for capacity in self._capacities:
            capacity.limit_items(limit)
