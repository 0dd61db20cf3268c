"""The two ways through a replica: batches of bulk items, and online calls."""

from typing import Protocol

from gpu_consumers.capacity import CapacityPublisher
from gpu_consumers.consumer import BatchConsumer, Delivery
from gpu_consumers.execution import BatchExecution
from gpu_consumers.online_execution import OnlineExecution
from gpu_consumers.pool_health import PoolHealth
from gpu_consumers.running_tasks import RunningTasks


class Lane(Protocol):
    """One class of batches: who reads them and who runs them. Used on the event loop."""

    consumer: BatchConsumer
    capacity: CapacityPublisher

    def begin(self, delivery: Delivery) -> None:
        """Run a batch and report it to the consumer when all of it is acknowledged."""
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
        pool: PoolHealth,
        tasks: RunningTasks,
    ) -> None:
        """Nothing runs."""
        self.consumer, self.capacity = consumer, capacity
        self._execution, self._pool, self._tasks = execution, pool, tasks

    def begin(self, delivery: Delivery) -> None:
        """Run a batch in a task of its own."""
        self._tasks.start(self._run(delivery))

    def drain(self) -> None:
        """Leave what comes to the partitions' next owner."""
        self.consumer.drain()

    def hand_back(self) -> None:
        """Publish what is answered and put back the rest."""
        self._execution.hand_back()

    async def _run(self, delivery: Delivery) -> None:
        answered = await self._execution.run(delivery.batch)
        self.consumer.finished(delivery.record, delivery.generation)
        if answered is not None:
            self._pool.answered() if answered else self._pool.away()


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

        self._execution.begin(delivery.batch, delivery.may_have_run, finished)

    def drain(self) -> None:
        """Put back at once what still comes: its callers wait, and others can run it."""
        self._execution.drain()

    def hand_back(self) -> None:
        """Cut short what runs."""
        self._execution.hand_back()
