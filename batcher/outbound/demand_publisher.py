"""Publishes demand without Faust, so that backpressure does not delay it."""

from collections.abc import Callable, Mapping

from batcher.outbound.batch_sender import BatcherIdentity
from topics.clients.producer import RecordProducer
from topics.records.catalogue import DEMAND
from topics.records.codec import encode, kind_headers
from topics.records.records import Demand, DemandTokens


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

    def publish(
        self,
        waiting: dict[str, int],
        shares: dict[str, float] | None = None,
        pools: Mapping[str, DemandTokens] | None = None,
    ) -> None:
        """Publish the waiting items by pool; pools with 0 learn that this batcher exists.

        `shares`: see `ServiceExchange.share`; without other batchers none are needed. `pools` are
        the tokens for the autoscaler.
        """
        if not self._producer.has_space(DEMAND.name, 0):
            return  # a newer record will be sent
        self.published_pools = frozenset(pool for pool, count in waiting.items() if count)
        identity, now_s = self._identity, self._database_s() or 0.0
        demand = Demand(
            identity.batcher_id,
            identity.job_class,
            waiting,
            now_s,
            shares or {},
            dict(pools or {}),
        )
        self._producer.send(
            DEMAND.name,
            encode(demand),
            partition=0,
            key=identity.batcher_id.encode(),
            headers=kind_headers(Demand),
        )
