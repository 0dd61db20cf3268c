"""Runs a replica: consumer threads, class workers and background tasks, until it is drained.

The engine is loaded and warm before: no partition is assigned to a replica that loads a model.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from core.clock import Clock, SystemClock
from core.runtime.supervised_tasks import SupervisedTasks
from gpu_consumers import metrics
from gpu_consumers.class_workers import REVOKE_S_MAX, ClassWorker
from gpu_consumers.flow_control.capacity_publisher import REPEAT_S, PoolHealth
from gpu_consumers.flow_control.replica_state import Lifecycle, PublishedState
from gpu_consumers.inflight.batch_run import DeliveredBatch
from gpu_consumers.spot.spot_notice import drain_grace_s
from topics.clients.offset_tracker import Partition
from topics.records.received_record import ReceivedRecord
from topics.tail_readers.tail_reader_thread import TailReaderThread
from topics.tail_readers.topic_tail_reader import TopicTailReader

_LOG = logging.getLogger(__name__)
_LEAVE_S = 5.0
_STOP_POLL_S = 0.1

EARLIER_DEMAND_RECORDS: Final = 100
"""Records of demand from before the start that are read: batchers write one a second or more."""

EARLIER_DEMAND_S: Final = 2.0
"""Age at the start from which they are ignored: they may be of batchers that have ended."""


BackgroundWork = Callable[[], Coroutine[Any, Any, None]]


@dataclass(kw_only=True, eq=False)
class Replica:
    """Runs until stopped, or raises the failure that must end the process."""

    workers: Sequence[ClassWorker]
    pool: PoolHealth
    tasks: SupervisedTasks
    demand: TopicTailReader
    background: Sequence[BackgroundWork] = ()  # each runs until cancelled
    failures: Sequence[asyncio.Future[None]] = ()  # each ends the process
    shutdown_grace_s: float
    state: PublishedState = field(default_factory=PublishedState)
    clock: Clock = field(default_factory=SystemClock)
    _stop_consumers: threading.Event = field(default_factory=threading.Event)
    _demand_tail: TailReaderThread | None = None
    _reads_demand_since_s: float = 0.0

    @property
    def in_flight(self) -> int:
        """Items of all classes that have arrived and not ended."""
        return sum(worker.capacity.in_flight for worker in self.workers)

    def read_demand(self) -> None:
        """Start to read what waits at batchers, so that the first grant needs no further record.

        `run` does it, if it was not done before.
        """
        if self._demand_tail is None:
            self._demand_tail = TailReaderThread(
                self.demand,
                partial(self.tasks.call_from_thread, self._apply_demand),
                name="demand-tail",
                on_failure=partial(self.tasks.call_from_thread, _raise),
            )
            self._reads_demand_since_s = self.clock.monotonic_s()
            # The newest records too: the next ones may come after the first grant.
            self._demand_tail.start_before_end(EARLIER_DEMAND_RECORDS)

    def raise_failure(self) -> None:
        """Raise what must end the process, before `run` does."""
        for failure in (self.tasks.failed, *self.failures):
            if failure.done():
                failure.result()

    def stop_reading(self) -> None:
        """End what `read_demand` began, of a replica that does not run."""
        if self._demand_tail is not None:
            self._demand_tail.stop()

    async def run(self, stop: threading.Event) -> None:
        """Serve until `stop`; then finish what the grace period allows and requeue the rest.

        After a spot notice the grace period lasts until shortly before the GPU goes.

        Raises EngineDeadError, DeliveryError, SchemaTooNewError, KafkaUnavailableError: the batches
        that run then are not committed, and are redelivered.
        """
        self._loop = asyncio.get_running_loop()
        self.state.set_lifecycle(Lifecycle.WARM)
        background = [
            asyncio.create_task(work())
            for work in (
                *(worker.capacity.run for worker in self.workers),
                *(worker.capacity.usage.run for worker in self.workers),
                *self.background,
                self._update_metrics,
            )
        ]
        threads = [asyncio.create_task(asyncio.to_thread(self._consume, w)) for w in self.workers]
        self.read_demand()
        demand = self._demand_tail
        assert demand is not None
        stopping = asyncio.create_task(_wait_for(stop))
        failures = [self.tasks.failed, *self.failures]
        running: list[asyncio.Future[None]] = [*failures, *background, *threads]
        try:
            await asyncio.wait([*running, stopping], return_when=asyncio.FIRST_COMPLETED)
            for ended in running:
                if ended.done():
                    ended.result()  # raises the failure; its work is not committed
            await self._drain()
            for failure in failures:
                if failure.done():
                    failure.result()
        finally:
            for task in (*background, stopping):
                task.cancel()
            self.tasks.cancel_all()
            self._stop_consumers.set()
            demand.request_stop()
            await asyncio.wait(threads, timeout=_LEAVE_S)
            await asyncio.to_thread(demand.stop)
        for worker in self.workers:
            worker.capacity.publish_withdrawal()

    def _consume(self, worker: ClassWorker) -> None:
        """Thread body of a class: its consumer, whose callbacks run on the event loop."""

        def deliver(delivered: DeliveredBatch) -> None:
            self.tasks.call_from_thread(worker.start_batch, delivered)

        def on_assignment(partitions: list[Partition]) -> None:
            self.tasks.call_from_thread(worker.capacity.start_epoch, partitions)

        def on_revoke(partitions: list[Partition], lost: bool) -> None:
            revoking = worker.on_revoke(frozenset(partitions), lost=lost)
            try:
                asyncio.run_coroutine_threadsafe(revoking, self._loop).result(2 * REVOKE_S_MAX)
            except TimeoutError:
                _LOG.warning("the event loop is busy: a partition goes before its batches are down")

        def on_pinned(partition: Partition, offsets: list[int]) -> None:
            self.tasks.call_from_thread(partial(worker.requeue_pinning, partition), offsets)

        worker.consumer.run(deliver, on_assignment, self._stop_consumers, on_revoke, on_pinned)

    def _apply_demand(self, records: list[ReceivedRecord]) -> None:
        passed_s = self.clock.monotonic_s() - self._reads_demand_since_s
        if passed_s < EARLIER_DEMAND_S:  # not for longer: clocks of hosts may differ
            oldest_ms = 1000 * (self.clock.wall_s() - passed_s - EARLIER_DEMAND_S)
            records = [record for record in records if record.appended_ms >= oldest_ms]
        for worker in self.workers:
            worker.capacity.apply_demand(records)

    async def _drain(self) -> None:
        self.state.set_lifecycle(Lifecycle.DRAINING)
        for worker in self.workers:
            worker.drain()
        self.pool.close()
        grace_s = drain_grace_s(
            self.state.leaves_at_s,
            now_s=self.clock.wall_s(),
            shutdown_grace_s=self.shutdown_grace_s,
        )
        await self.tasks.wait_all(grace_s)
        for worker in self.workers:
            worker.requeue_all()
        await self.tasks.wait_all(_LEAVE_S)

    async def _update_metrics(self) -> None:
        while True:
            metrics.IN_FLIGHT.set(self.in_flight)
            metrics.ITEMS_PER_SECOND.set(
                sum(worker.capacity.items_per_s for worker in self.workers)
            )
            await asyncio.sleep(REPEAT_S)


async def _wait_for(stop: threading.Event) -> None:
    while not stop.is_set():  # noqa: ASYNC110  set by a signal, outside of any event loop
        await asyncio.sleep(_STOP_POLL_S)


def _raise(failure: BaseException) -> None:
    raise failure
