"""A replica of a pool: consumer threads, event loop, engine and capacity, started and drained.

Load and warm the engine, then join the groups: no partition waits behind a loading model.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.supervised_tasks import SupervisedTasks
from gpu_consumers import metrics
from gpu_consumers.class_workers import LET_GO_S, Lane
from gpu_consumers.flow_control.capacity_publisher import REPEAT_S, follow_demand
from gpu_consumers.flow_control.pool_health import PoolHealth
from gpu_consumers.inflight.delivery import Delivery
from topics.clients.offsets import Partition
from topics.records.received import Received
from topics.tail_readers.topic_tail import TopicTail

_LOG = logging.getLogger(__name__)
_LEAVE_S = 5.0
_STOP_POLL_S = 0.1


Watch = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaParts:
    """What the composition root has built for a replica."""

    lanes: Sequence[Lane]
    pool: PoolHealth
    tasks: SupervisedTasks
    demand: TopicTail
    watches: Sequence[Watch] = ()  # run beside; they never return
    failures: Sequence[asyncio.Future[None]] = field(default=())  # each ends the process


class Replica:
    """Runs until stopped, or raises what ends the process with its offsets uncommitted."""

    def __init__(self, parts: ReplicaParts, *, shutdown_grace_s: float) -> None:
        """Nothing runs yet."""
        self._parts, self._grace_s = parts, shutdown_grace_s
        self._leave = threading.Event()
        self._quiet = threading.Event()

    @property
    def in_flight(self) -> int:
        """Items taken over and not ended, of all classes."""
        return sum(lane.capacity.in_flight for lane in self._parts.lanes)

    async def run(self, stop: threading.Event) -> None:
        """Serve until `stop`; then finish what fits the grace period and hand the rest back.

        Raises EngineDeadError, DeliveryError, SchemaTooNewError, LogUnavailableError; what runs
        then is left to its redelivery.
        """
        self._loop = asyncio.get_running_loop()
        lanes = self._parts.lanes
        beside = [
            asyncio.create_task(work())
            for work in (
                *(lane.capacity.run for lane in lanes),
                *self._parts.watches,
                self._observe,
            )
        ]
        threads = [asyncio.create_task(asyncio.to_thread(self._poll, lane)) for lane in lanes]
        threads.append(asyncio.create_task(asyncio.to_thread(self._listen)))
        stopping = asyncio.create_task(_stopped(stop))
        failures = [self._parts.tasks.failed, *self._parts.failures]
        ending: list[asyncio.Future[None]] = [*failures, *beside, *threads]
        try:
            await asyncio.wait([*ending, stopping], return_when=asyncio.FIRST_COMPLETED)
            for ended in ending:
                if ended.done():
                    ended.result()  # raises what went wrong; nothing was committed for it
            await self._drain()
            for failure in failures:
                if failure.done():
                    failure.result()
        finally:
            for task in (*beside, stopping):
                task.cancel()
            self._parts.tasks.cancel_all()
            self._leave.set()
            self._quiet.set()
            await asyncio.wait(threads, timeout=_LEAVE_S)
        for lane in lanes:
            lane.capacity.withdraw()

    def _poll(self, lane: Lane) -> None:
        def deliver(delivery: Delivery) -> None:
            self._parts.tasks.call_from_thread(lane.begin, delivery)

        def moved(partitions: list[Partition]) -> None:
            self._parts.tasks.call_from_thread(lane.capacity.assigned, partitions)

        def let_go(partitions: list[Partition], lost: bool) -> None:
            going = lane.let_go(frozenset(partitions), lost=lost)
            try:
                asyncio.run_coroutine_threadsafe(going, self._loop).result(2 * LET_GO_S)
            except TimeoutError:
                _LOG.warning("the event loop is busy: a partition goes before its batches are down")

        lane.consumer.run(deliver, moved, self._leave, let_go)

    def _listen(self) -> None:
        def hear(records: list[Received]) -> None:
            for lane in self._parts.lanes:
                lane.capacity.demand(records)

        def deliver(records: list[Received]) -> None:
            self._parts.tasks.call_from_thread(hear, records)

        follow_demand(self._parts.demand, deliver, self._quiet)

    async def _drain(self) -> None:
        for lane in self._parts.lanes:
            lane.drain()
        self._parts.pool.leave()
        await self._parts.tasks.wait_all(self._grace_s)
        for lane in self._parts.lanes:
            lane.hand_back()
        await self._parts.tasks.wait_all(_LEAVE_S)

    async def _observe(self) -> None:
        lanes = self._parts.lanes
        while True:
            metrics.IN_FLIGHT.set(self.in_flight)
            metrics.ITEMS_PER_SECOND.set(sum(lane.capacity.items_per_s for lane in lanes))
            await asyncio.sleep(REPEAT_S)


async def _stopped(stop: threading.Event) -> None:
    while not stop.is_set():  # noqa: ASYNC110  a signal sets it, in no event loop
        await asyncio.sleep(_STOP_POLL_S)
