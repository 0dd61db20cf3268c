"""Reads capacity and publishes demand without Faust, so that backpressure delays neither."""

import threading
from collections.abc import Callable

from batcher.outbound.batch_sender import BatcherIdentity
from topics.clients.producer import LogProducer
from topics.records.catalogue import CAPACITY, DEMAND
from topics.records.codec import encode, kind_headers
from topics.records.received import Received
from topics.records.records import Capacity, Demand
from topics.settings import KafkaSettings
from topics.tail_readers.tail_thread import readable
from topics.tail_readers.topic_tail import TopicTail

_POLL_S = 0.5


class CapacityReader:
    """A thread that reads the capacity of replicas from the topic's present end on."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        client_id: str,
        on_capacity: Callable[[list[Capacity]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Both callbacks run in the thread."""
        self._tail = TopicTail(
            settings, CAPACITY, client_id=f"{client_id}-capacity", past_counts=False
        )
        self._on_capacity, self._on_failure = on_capacity, on_failure
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="capacity-tail", daemon=True)

    def start(self, timeout_s: float) -> None:
        """Read from the present end: replicas repeat their state, so old records are useless.

        Raises LogUnavailableError.
        """
        self._tail.skip_to_end(timeout_s)
        self._thread.start()

    def stop(self) -> None:
        """Stop reading."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._tail.close()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if capacities := latest_capacities(self._tail.poll(_POLL_S)):
                    self._on_capacity(capacities)
        except Exception as failure:  # noqa: BLE001  without capacity no item is dispatched
            self._on_failure(failure)


def latest_capacities(records: list[Received]) -> list[Capacity]:
    """Return the latest capacity of each replica and class. Raises SchemaTooNewError."""
    found = {
        (capacity.replica_id, capacity.job_class): capacity
        for _, capacity in readable(Capacity, records)
        if capacity is not None
    }
    return list(found.values())


class DemandPublisher:
    """Publishes this batcher's waiting items, so that replicas grant credit where items wait.

    The record also carries the database's time, which replicas cannot read themselves.
    """

    def __init__(
        self,
        producer: LogProducer,
        identity: BatcherIdentity,
        database_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`database_s` returns the database's time, or None while unknown."""
        self._producer, self._identity, self._database_s = producer, identity, database_s
        self._waiting_pools: frozenset[str] = frozenset()

    def publish(self, waiting: dict[str, int]) -> None:
        """Publish the waiting items by pool; pools with 0 learn that this batcher exists."""
        self._waiting_pools = frozenset(pool for pool, count in waiting.items() if count)
        identity, now_s = self._identity, self._database_s() or 0.0
        self._producer.send(
            DEMAND.name,
            encode(Demand(identity.batcher_id, identity.job_class, waiting, now_s)),
            partition=0,
            key=identity.batcher_id.encode(),
            headers=kind_headers(Demand),
        )

    @property
    def has_published_demand(self) -> bool:
        """Whether the last record named a pool with waiting items."""
        return bool(self._waiting_pools)

    def is_unpublished(self, pool: str) -> bool:
        """Whether the last record named no waiting items for `pool`."""
        return pool not in self._waiting_pools
