"""Capacity in and demand out, beside Faust, so that an agent that holds back delays neither."""

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
    """A thread that follows what replicas say they can take, from now on."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        client_id: str,
        deliver: Callable[[list[Capacity]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Both callbacks run in the thread."""
        self._tail = TopicTail(
            settings, CAPACITY, client_id=f"{client_id}-capacity", past_counts=False
        )
        self._deliver, self._on_failure = deliver, on_failure
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="capacity-tail", daemon=True)

    def start(self, timeout_s: float) -> None:
        """Follow from the present end: state is repeated, so the past is worth nothing.

        Raises LogUnavailableError.
        """
        self._tail.skip_to_end(timeout_s)
        self._thread.start()

    def stop(self) -> None:
        """Stop following."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._tail.close()

    def _follow(self) -> None:
        try:
            while not self._stopping.is_set():
                if capacities := latest_capacities(self._tail.poll(_POLL_S)):
                    self._deliver(capacities)
        except Exception as failure:  # noqa: BLE001  without the feed no item leaves
            self._on_failure(failure)


def latest_capacities(records: list[Received]) -> list[Capacity]:
    """Return the newest capacity of each replica and class. Raises SchemaTooNewError."""
    found = {
        (capacity.replica_id, capacity.job_class): capacity
        for _, capacity in readable(Capacity, records)
        if capacity is not None
    }
    return list(found.values())


class DemandPublisher:
    """Tells replicas what this batcher holds, so that credit goes where items wait.

    And what the time is by the database, which they do not reach.
    """

    def __init__(
        self,
        producer: LogProducer,
        identity: BatcherIdentity,
        database_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Publish nothing yet; `database_s` is the database's time, None while it is not known."""
        self._producer, self._identity, self._database_s = producer, identity, database_s
        self._waiting_pools: frozenset[str] = frozenset()

    def publish(self, waiting: dict[str, int]) -> None:
        """Say what waits, by pool; pools with nothing too, so that they know this batcher."""
        self._waiting_pools = frozenset(pool for pool, count in waiting.items() if count)
        who, now_s = self._identity, self._database_s() or 0.0
        self._producer.send(
            DEMAND.name,
            encode(Demand(who.batcher_id, who.job_class, waiting, now_s)),
            partition=0,
            key=self._identity.batcher_id.encode(),
            headers=kind_headers(Demand),
        )

    @property
    def says_that_items_wait(self) -> bool:
        """Whether replicas were told last that something waits for some pool."""
        return bool(self._waiting_pools)

    def is_news(self, pool: str) -> bool:
        """Whether replicas were told last that nothing waits for `pool`."""
        return pool not in self._waiting_pools
