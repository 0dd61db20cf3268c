"""Periodic tasks of a batcher: publish demand, maintain queues, update metrics, detect a stall."""

import asyncio
from dataclasses import dataclass
from functools import partial

from batcher import metrics
from batcher.faust_app.ordered_acks import OrderedAcks
from batcher.faust_app.request_stream import RequestStream, group_of
from batcher.inbound.record_handler import RecordHandler
from batcher.outbound.demand_publisher import DemandPublisher
from batcher.outbound.dispatcher import Dispatcher
from batcher.outbound.service_publisher import ServicePublisher
from batcher.policy.credits import CreditLedger
from batcher.policy.service_exchange import ServiceExchange
from batcher.queueing.maintenance import QueueMaintenance
from batcher.queueing.pool_arrivals import PoolArrivals
from batcher.queueing.queue_levels import PoolQueue
from batcher.queueing.queues import Queues
from batcher.queueing.tenant_service import pool_shares, prune_service, report_service
from batcher.queueing.token_demand import demand_of_pools
from batcher.watchdog import Observation, Watchdog
from core.clock import Clock
from core.errors import MillraceError
from core.runtime.futures import run_in_daemon_thread
from topics.clients.admin import TopicAdmin
from topics.clients.dead_letter_sender import DeadLetterSender
from topics.clients.unreadable_partitions import UnreadablePartitions
from topics.errors import KafkaUnavailableError
from topics.metrics import LAG
from topics.records.catalogue import REQUESTS

INTERVAL_S = 0.2
"""Time between two publications of demand while items wait."""

MAINTENANCE_EVERY = 5
"""Intervals between two runs of maintenance, and between two publications of zero demand."""

WATCHDOG_INTERVAL_S = 5.0
"""Time between two watchdog checks, each a request to the broker."""


class BatcherStalledError(MillraceError):
    """The batcher made no progress although it could work; it must be restarted."""

    code = "standstill"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicTasks:
    """The periodic loops; everything runs on the event loop."""

    job_class: str
    queues: Queues
    arrivals: PoolArrivals
    ledger: CreditLedger
    acks: OrderedAcks
    record_handler: RecordHandler
    dispatcher: Dispatcher
    maintenance: QueueMaintenance
    demand: DemandPublisher
    service: ServicePublisher
    exchange: ServiceExchange
    stream: RequestStream
    dead_letters: DeadLetterSender
    admin: TopicAdmin
    clock: Clock
    unreadable: UnreadablePartitions

    async def run(self) -> None:
        """Publish demand, maintain the queues and update metrics until cancelled."""
        count = 0
        while True:
            count += 1
            self._publish_service(is_heartbeat=count % MAINTENANCE_EVERY == 0)
            has_demand = self.demand.published_pools or any(self.queues.waiting().values())
            if has_demand or count % MAINTENANCE_EVERY == 0:
                self.publish_demand()
            if count % MAINTENANCE_EVERY == 0:
                self.maintenance.run_once()
                self._update_metrics()
            self._send_dead_letters()
            self.dispatcher.wake()  # a grant may have expired, a batch may be due
            await asyncio.sleep(INTERVAL_S)

    def _send_dead_letters(self) -> None:
        """Send copies that wait for space, and read the partitions again that have none left."""
        self.dead_letters.send_waiting()
        self.stream.pause_only(self.dead_letters.waiting_partitions)

    def _publish_service(self, *, is_heartbeat: bool) -> None:
        """Publish what tenants were served to other batchers, and that this one exists."""
        now_s = self.clock.monotonic_s()
        has_others = self.exchange.has_others(now_s=now_s)
        # Alone, it reports for operators and for the process that takes its place after a crash.
        service = report_service(self.queues) if has_others or is_heartbeat else {}
        if is_heartbeat or service:
            self.service.publish(service)
        if is_heartbeat:
            prune_service(self.queues, now_s=now_s)

    def publish_demand(self) -> None:
        """Publish waiting items by pool; pools with 0 learn that this batcher exists.

        Items whose version no replica has are not demanded: grants for them would be unused.
        """
        waiting = dict.fromkeys(self.ledger.pools, 0) | self._servable()
        shares = pool_shares(self.queues, self.exchange, now_s=self.clock.monotonic_s())
        self.demand.publish(waiting, shares, demand_of_pools(self.queues, self.arrivals))

    def publish_new_demand(self) -> None:
        """Publish demand if a pool has waiting items that the last record did not name."""
        waiting, published = self._servable(), self.demand.published_pools
        if any(count and pool not in published for pool, count in waiting.items()):
            self.publish_demand()

    def _servable(self) -> dict[str, int]:
        """Return the waiting items by pool; all of a pool without any replica."""
        return {
            name: pool.item_count - self._unserved(name, pool)
            for name, pool in self.queues.pools.items()
        }

    def _unserved(self, name: str, pool: PoolQueue) -> int:
        if not self.ledger.candidates(name):
            return 0
        return pool.unserved_items(partial(self.ledger.is_served, name))

    async def run_watchdog(self, watchdog: Watchdog) -> None:
        """Check for a stall until cancelled. Raises BatcherStalledError."""
        while True:
            await asyncio.sleep(WATCHDOG_INTERVAL_S)
            seen = self._observe(await self._lag())
            metrics.COMMIT_AGE_SECONDS.set(watchdog.commit_age_s(seen))
            if watchdog.is_stalled(seen):
                raise BatcherStalledError(held=seen.buffered_count, lag=seen.lag)

    async def _lag(self) -> int | None:
        """Return the uncommitted records of the partitions that are read; None if unknown."""
        try:
            read_lag = partial(self.admin.lag, group_of(self.job_class), REQUESTS[self.job_class])
            lag = await run_in_daemon_thread(read_lag, name="batcher-lag")  # must not delay a stop
        except KafkaUnavailableError:
            return None
        assigned = sum(lag.get(number, 0) for number in self.stream.partitions)
        LAG.labels(REQUESTS[self.job_class].name, group_of(self.job_class)).set(assigned)
        return sum(lag.get(number, 0) for number in self.stream.read_partitions)

    def _observe(self, lag: int | None) -> Observation:
        now_s = self.clock.monotonic_s()
        return Observation(
            at_s=now_s,
            lag=lag,
            received_count=self.record_handler.received_count,
            dispatched_count=self.dispatcher.dispatched_count,
            acknowledged_count=self.acks.acknowledged_count,
            committed_offsets=self.stream.committed_offsets,
            buffered_count=self.queues.item_count + self.queues.reserved_count,
            has_credit=self._has_credit(now_s),
            open_count=self.acks.open_count,
            is_full=self.queues.is_reading_stopped,
            rebalance_count=self.stream.rebalance_count,
        )

    def _has_credit(self, now_s: float) -> bool:
        """Whether a replica has credit for items that wait."""
        for name, pool in self.queues.pools.items():
            replicas = self.ledger.best_replicas(name, now_s=now_s) if pool.item_count else None
            if replicas is not None and any(
                replicas.of(required)
                for required in {key.required_model for key in pool.batch_keys}
            ):
                return True
        return False

    def _update_metrics(self) -> None:
        now_ms = 1000 * self.clock.wall_s()
        self.unreadable.observe(self.stream.unreadable_partitions(now_ms=now_ms))
        for pool, count in self.queues.waiting().items():
            metrics.BUFFERED_ITEMS.labels(pool).set(count)
        for name, of_pool in self.queues.pools.items():
            metrics.UNSERVED_ITEMS.labels(name).set(self._unserved(name, of_pool))
        metrics.BUFFERED_BYTES.set(self.queues.byte_count)
        metrics.DEFERRED_RECORDS.set(len(self.queues.deferred))
        metrics.OPEN_EVENTS.set(self.acks.open_count)
