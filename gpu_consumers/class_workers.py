"""The two ways through a replica: batches of bulk items, and online calls."""

import asyncio
from collections.abc import Collection
from typing import Protocol

from core.supervised_tasks import SupervisedTasks
from gpu_consumers.bulk.batch_execution import BatchExecution
from gpu_consumers.consumer import BatchConsumer
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher
from gpu_consumers.flow_control.pool_health import PoolHealth
from gpu_consumers.inflight.batch_run import BatchRun, Cut, Ending
from gpu_consumers.inflight.delivery import Delivery
from gpu_consumers.online.call_execution import OnlineExecution
from gpu_consumers.quarantine.quarantine import Isolation
from topics.clients.offsets import Partition

FORGET_S = 1.0
"""Between two looks at what is committed."""

LET_GO_S = 2.0
"""How long a group waits for this member to put down what another one will own."""


class Lane(Protocol):
    """One class of batches: who reads them and who runs them. Used on the event loop."""

    consumer: BatchConsumer
    capacity: CapacityPublisher

    def begin(self, delivery: Delivery) -> None:
        """Run a batch and report it to the consumer when all of it is acknowledged."""
        ...

    async def let_go(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Put down what lies on partitions that are no longer ours; return within `LET_GO_S`.

        They are `lost` when they have another owner already.
        """
        ...

    def drain(self) -> None:
        """Begin nothing more."""
        ...

    def hand_back(self) -> None:
        """Cut short what runs; what is not answered goes back to its requests."""
        ...


class BulkLane:
    """Batches of items, each run by one task."""

    def __init__(
        self,
        consumer: BatchConsumer,
        capacity: CapacityPublisher,
        execution: BatchExecution,
        isolation: Isolation,
        parts: tuple[PoolHealth, SupervisedTasks],
    ) -> None:
        """Nothing runs."""
        self.consumer, self.capacity = consumer, capacity
        self._execution, self._isolation = execution, isolation
        self._pool, self._tasks = parts

    def begin(self, delivery: Delivery) -> None:
        """Run a batch in a task of its own."""
        run = self._execution.begin(delivery)
        run.task = self._tasks.start(self._run(run))

    async def let_go(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Drop what others run by now; hand back the rest before others find it.

        What may have run before stays where it is, with what is known of it: handed back it would
        look like new.
        """
        going = [run for run in self._execution.runs if run.place in partitions]
        for run in going:
            stays = lost or run.delivery.may_have_run
            run.stop(Cut.DROP if stays else Cut.HAND_BACK)
        tasks = [run.task for run in going if run.task is not None]
        if tasks and not lost:
            await asyncio.wait(tasks, timeout=LET_GO_S)

    def drain(self) -> None:
        """Leave what comes to the partitions' next owner."""
        self.consumer.drain()

    async def watch(self) -> None:
        """Forget attempts of batches that nobody reads again, until cancelled."""
        while True:
            await asyncio.sleep(FORGET_S)
            await self._isolation.forget(self.consumer.is_committed)

    def hand_back(self) -> None:
        """Publish what is answered and put back the rest."""
        self._execution.hand_back()

    async def _run(self, run: BatchRun) -> None:
        try:
            ending = await self._ending(run)
        finally:
            self._execution.end(run)
        if run.cut is not Cut.DROP:
            self.consumer.finished(run.delivery.record, run.delivery.generation)
        if ending is Ending.ANSWERED and run.answers:
            self._pool.answered()
        elif ending is Ending.AWAY:
            self._pool.away()

    async def _ending(self, run: BatchRun) -> Ending | None:
        if run.delivery.may_have_run:
            return await self._isolation.redelivered(run)
        ending = await self._execution.whole(run)
        if ending is Ending.OUT_OF_MEMORY:
            return await self._isolation.too_large(run)
        await self._isolation.ended_beside(run)
        return ending


class OnlineLane:
    """Online calls, each run by a task of its own."""

    def __init__(
        self, consumer: BatchConsumer, capacity: CapacityPublisher, execution: OnlineExecution
    ) -> None:
        """Nothing runs."""
        self.consumer, self.capacity, self._execution = consumer, capacity, execution

    def begin(self, delivery: Delivery) -> None:
        """Run the calls of a batch."""

        def finished() -> None:
            self.consumer.finished(delivery.record, delivery.generation)

        self._execution.begin(delivery, finished)

    async def let_go(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Go on: callers wait for these. What may have run before is told of as put down."""
        telling = self._execution.let_go(partitions, lost=lost)
        await asyncio.wait([telling], timeout=LET_GO_S)

    def drain(self) -> None:
        """Put back at once what still comes: its callers wait, and others can run it."""
        self._execution.drain()

    def hand_back(self) -> None:
        """Cut short what runs."""
        self._execution.hand_back()
