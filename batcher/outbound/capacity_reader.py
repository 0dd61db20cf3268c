"""Reads capacity and publishes demand without Faust, so that backpressure delays neither."""

from collections.abc import Callable
from typing import Final

from batcher.outbound.batch_sender import BatcherIdentity
from topics.clients.producer import RecordProducer
from topics.records.catalogue import CAPACITY, DEMAND
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Capacity, Demand
from topics.settings import KafkaSettings
from topics.tail_readers.tail_reader_thread import TailReaderThread, decode_records
from topics.tail_readers.topic_tail_reader import TopicTailReader

POLL_INTERVAL_S: Final = 0.05
"""Time for which records are collected: they carry rates, and grants of earlier releases."""


class CapacityReader:
    """A thread that reads the capacity of replicas from the topic's present end on."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        client_id: str,
        on_capacity: Callable[[list[Capacity]], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """Both callbacks run in the thread."""
        self._tail = TopicTailReader(
            settings,
            CAPACITY,
            client_id=f"{client_id}-capacity",
            reset_to_earliest=False,
            poll_interval_s=POLL_INTERVAL_S,
        )
        self._on_capacity = on_capacity
        self._thread = TailReaderThread(
            self._tail, self._read_records, name="capacity-tail", on_failure=on_failure
        )

    def start(self, timeout_s: float) -> None:
        """Read from the present end: replicas repeat their state, so old records are useless.

        Raises KafkaUnavailableError.
        """
        self._tail.seek_to_end(timeout_s)
        self._thread.start()

    def stop(self) -> None:
        """Stop reading."""
        self._thread.stop()

    def _read_records(self, records: list[ReceivedRecord]) -> None:
        if capacities := latest_capacities(records):
            self._on_capacity(capacities)


def latest_capacities(records: list[ReceivedRecord]) -> list[Capacity]:
    """Return the latest capacity of each replica and class. Raises SchemaTooNewError."""
    found = {
        (capacity.replica_id, capacity.job_class): capacity
        for _, capacity in decode_records(Capacity, records)
        if capacity is not None
    }
    return list(found.values())


class DemandPublisher:
    """Publishes this batcher's waiting items, so that replicas grant credit where items wait.

    The record also carries the database's time, which replicas cannot read themselves.
    """

    def __init__(
        self,
        producer: RecordProducer,
        identity: BatcherIdentity,
        database_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`database_s` returns the database's time, or None while unknown."""
        self._producer, self._identity, self._database_s = producer, identity, database_s
        self.published_pools: frozenset[str] = frozenset()  # with waiting items in the last record

    def publish(self, waiting: dict[str, int], shares: dict[str, float] | None = None) -> None:
        """Publish the waiting items by pool; pools with 0 learn that this batcher exists.

        `shares`: see `ServiceExchange.share`; without other batchers none are needed.
        """
        if not self._producer.has_space(DEMAND.name, 0):
            return  # a newer record will be sent
        self.published_pools = frozenset(pool for pool, count in waiting.items() if count)
        identity, now_s = self._identity, self._database_s() or 0.0
        self._producer.send(
            DEMAND.name,
            encode(Demand(identity.batcher_id, identity.job_class, waiting, now_s, shares or {})),
            partition=0,
            key=identity.batcher_id.encode(),
            headers=kind_headers(Demand),
        )
