"""What a batcher does by the clock: publish demand, sweep, measure, and notice a standstill."""

import asyncio
from dataclasses import dataclass
from functools import partial

from batcher import metrics
from batcher.faust_app.app import RequestStream, group_of
from batcher.faust_app.ordered_acks import OrderedAcks
from batcher.inbound.record_handler import RecordHandler
from batcher.outbound.capacity_reader import DemandPublisher
from batcher.outbound.dispatcher import Dispatcher
from batcher.policy.credits import CreditLedger
from batcher.queueing.maintenance import QueueMaintenance
from batcher.queueing.queues import Queues
from batcher.watchdog import Observation, Watchdog
from core.clock import Clock
from core.errors import MillraceError
from core.futures import in_daemon
from topics.clients.admin import LogAdmin
from topics.errors import LogUnavailableError
from topics.metrics import LAG
from topics.records.catalogue import REQUESTS

INTERVAL_S = 0.2
"""How often demand is published while items wait."""

MAINTENANCE_EVERY = 5
"""Ticks between looks for closed jobs and for records that are held too long, and between two
publications of a demand for nothing."""

WATCHDOG_INTERVAL_S = 5.0
"""Between looks of the watchdog, each a request to the broker."""


class BatcherStalledError(MillraceError):
    """Nothing moves though there is work and room; a new process may do better."""

    code = "standstill"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicTasks:
    """The parts that are looked at by the clock; everything runs on the event loop."""

    job_class: str
    queues: Queues
    ledger: CreditLedger
    acks: OrderedAcks
    arrivals: RecordHandler
    dispatcher: Dispatcher
    sweeper: QueueMaintenance
    demand: DemandPublisher
    stream: RequestStream
    admin: LogAdmin
    clock: Clock

    async def tick(self) -> None:
        """Publish, sweep and measure until cancelled."""
        count = 0
        while True:
            count += 1
            is_wanted = self.demand.says_that_items_wait or any(self.queues.waiting().values())
            if is_wanted or count % MAINTENANCE_EVERY == 0:
                self.publish_demand()
            if count % MAINTENANCE_EVERY == 0:
                self.sweeper.drop_over()
                self.queues.rank_again()
                self.sweeper.hand_back_old()
                self.ledger.forget_silent(now_s=self.clock.monotonic_s())
                self.sweeper.forget_pools()
                self._measure()
            self.dispatcher.wake()  # credit may have become void, a batch may be due
            await asyncio.sleep(INTERVAL_S)

    def publish_demand(self) -> None:
        """Say what waits; pools without anything too, so that their replicas know this batcher."""
        self.demand.publish(dict.fromkeys(self.ledger.pools, 0) | self.queues.waiting())

    def publish_news(self) -> None:
        """Publish demand when a pool for which nothing waited lacks credit now."""
        waiting = self.queues.waiting()
        if any(count and self.demand.is_news(pool) for pool, count in waiting.items()):
            self.publish_demand()

    async def watch(self, watchdog: Watchdog) -> None:
        """Look for a standstill until cancelled. Raises BatcherStalledError."""
        while True:
            await asyncio.sleep(WATCHDOG_INTERVAL_S)
            seen = self._observe(await self._lag())
            metrics.COMMIT_AGE_SECONDS.set(watchdog.commit_age_s(seen))
            if watchdog.is_stuck(seen):
                raise BatcherStalledError(held=seen.held_count, lag=seen.lag)

    async def _lag(self) -> int | None:
        """Records of our partitions that are not committed; None when the broker does not say."""
        try:
            ask = partial(self.admin.lag, group_of(self.job_class), REQUESTS[self.job_class])
            lag = await in_daemon(ask, name="batcher-lag")  # a stop does not wait for the broker
        except LogUnavailableError:
            return None
        ours = sum(lag.get(number, 0) for number in self.stream.partitions)
        LAG.labels(REQUESTS[self.job_class].name, group_of(self.job_class)).set(ours)
        return ours

    def _observe(self, lag: int | None) -> Observation:
        now_s = self.clock.monotonic_s()
        pools = [name for name, count in self.queues.waiting().items() if count]
        return Observation(
            at_s=now_s,
            lag=lag,
            received_count=self.arrivals.received_count,
            dispatched_count=self.dispatcher.dispatched_count,
            acknowledged_count=self.acks.acknowledged_count,
            committed_offsets=self.stream.committed_offsets,
            held_count=self.queues.item_count + self.queues.unchecked_count,
            has_credit=any(self.ledger.best(pool, now_s=now_s) for pool in pools),
            open_count=self.acks.open_count,
            is_full=self.queues.is_full,
            rebalance_count=self.stream.rebalance_count,
        )

    def _measure(self) -> None:
        for pool, count in self.queues.waiting().items():
            metrics.HELD_ITEMS.labels(pool).set(count)
        metrics.HELD_BYTES.set(self.queues.byte_count)
        metrics.OPEN_EVENTS.set(self.acks.open_count)
