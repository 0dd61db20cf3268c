"""A replica of a pool: consumer thread, event loop, engine and capacity, started and drained.

Load and warm the engine, then join the group: no partition waits behind a loading model.
"""

import asyncio
import logging
import threading
from dataclasses import dataclass

from gpu_consumers import metrics
from gpu_consumers.capacity import REPEAT_S, CapacityPublisher, follow_demand
from gpu_consumers.consumer import BatchConsumer
from gpu_consumers.engines.engine import Engine
from gpu_consumers.execution import BatchExecution
from topics.consumer import Received
from topics.offsets import Partition
from topics.records import Batch
from topics.tail import TopicTail

_LOG = logging.getLogger(__name__)
_BACKOFF_S_MIN = 0.5
_PROBE_ITEMS = 1
_LEAVE_S = 5.0
_STOP_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaParts:
    """What the composition root has built for a replica."""

    engine: Engine
    consumer: BatchConsumer
    capacity: CapacityPublisher
    execution: BatchExecution
    demand: TopicTail


class Replica:
    """Runs until stopped, or raises what ends the process with its offsets uncommitted."""

    def __init__(
        self, parts: ReplicaParts, *, shutdown_grace_s: float, backoff_s_max: float
    ) -> None:
        """Nothing runs yet."""
        self._parts = parts
        self._grace_s, self._backoff_s_max = shutdown_grace_s, backoff_s_max
        self._backoff_s = _BACKOFF_S_MIN
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._draining = False
        self._leave = threading.Event()
        self._quiet = threading.Event()

    async def run(self, stop: threading.Event) -> None:
        """Serve until `stop`; then finish what fits the grace period and hand the rest back.

        Raises EngineDeadError, DeliveryError, SchemaTooNewError, LogUnavailableError; what runs
        then is left to its redelivery.
        """
        self._loop = asyncio.get_running_loop()
        self._fatal: asyncio.Future[None] = self._loop.create_future()
        publishing = asyncio.create_task(self._parts.capacity.run())
        observing = asyncio.create_task(self._observe())
        polling = asyncio.create_task(asyncio.to_thread(self._poll))
        listening = asyncio.create_task(asyncio.to_thread(self._listen))
        stopping = asyncio.create_task(_stopped(stop))
        ending: list[asyncio.Future[None]] = [
            self._fatal,
            publishing,
            observing,
            polling,
            listening,
        ]
        try:
            await asyncio.wait([*ending, stopping], return_when=asyncio.FIRST_COMPLETED)
            for ended in ending:
                if ended.done():
                    ended.result()  # raises what went wrong; nothing was committed for it
            await self._drain()
        finally:
            publishing.cancel()
            observing.cancel()
            stopping.cancel()
            for task in self._tasks:
                task.cancel()
            self._leave.set()
            self._quiet.set()
            await asyncio.wait({polling, listening}, timeout=_LEAVE_S)
        self._parts.capacity.withdraw()

    def _poll(self) -> None:
        self._parts.consumer.run(self._deliver, self._moved, self._leave)

    def _listen(self) -> None:
        def deliver(records: list[Received]) -> None:
            self._loop.call_soon_threadsafe(self._parts.capacity.demand, records)

        follow_demand(self._parts.demand, deliver, self._quiet)

    def _deliver(self, record: Received, batch: Batch, generation: int) -> None:
        self._loop.call_soon_threadsafe(self._begin, record, batch, generation)

    def _moved(self, partitions: list[Partition]) -> None:
        self._loop.call_soon_threadsafe(self._parts.capacity.assigned, partitions)

    def _begin(self, record: Received, batch: Batch, generation: int) -> None:
        task = asyncio.create_task(self._run_batch(record, batch, generation))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def _run_batch(self, record: Received, batch: Batch, generation: int) -> None:
        answered = await self._parts.execution.run(batch)
        self._parts.consumer.finished(record, generation)
        if self._draining or answered is None:
            return
        self._pool_answered() if answered else self._pool_away()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) and not self._fatal.done():
            self._fatal.set_exception(failure)

    def _pool_away(self) -> None:
        """Take nothing for a while, then try again with one item."""
        metrics.POOL_AVAILABLE.set(0)
        self._parts.capacity.restrict(0)
        if self._retry is None:
            _LOG.warning("the pool is away", extra={"retry_in_s": self._backoff_s})
            self._retry = self._loop.call_later(self._backoff_s, self._try_again)
            self._backoff_s = min(self._backoff_s * 2, self._backoff_s_max)

    def _try_again(self) -> None:
        self._retry = None
        if not self._draining:
            self._parts.capacity.restrict(_PROBE_ITEMS)

    def _pool_answered(self) -> None:
        if self._retry is None:
            metrics.POOL_AVAILABLE.set(1)
            self._backoff_s = _BACKOFF_S_MIN
            self._parts.capacity.restrict(None)

    async def _drain(self) -> None:
        self._draining = True  # from here on nothing lifts the restriction
        self._parts.consumer.drain()
        self._parts.capacity.restrict(0)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._grace_s)
        self._parts.execution.hand_back()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LEAVE_S)
        if self._fatal.done():
            self._fatal.result()

    async def _observe(self) -> None:
        while True:
            metrics.IN_FLIGHT.set(self._parts.capacity.in_flight)
            metrics.ITEMS_PER_SECOND.set(self._parts.capacity.items_per_s)
            await asyncio.sleep(REPEAT_S)


async def _stopped(stop: threading.Event) -> None:
    while not stop.is_set():  # noqa: ASYNC110  a signal sets it, in no event loop
        await asyncio.sleep(_STOP_POLL_S)
