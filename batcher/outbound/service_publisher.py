"""Publishes what this batcher serves to each tenant, for other batchers."""

from batcher.outbound.batch_sender import BatcherIdentity
from topics.clients.producer import RecordProducer
from topics.records.catalogue import SERVICE
from topics.records.codec import encode, kind_headers
from topics.records.records import ServiceReport, TenantService


class ServicePublisher:
    """Publishes the reports of this batcher."""

    def __init__(self, producer: RecordProducer, identity: BatcherIdentity) -> None:
        """Publish nothing yet."""
        self._producer, self._identity = producer, identity

    def publish(self, pools: dict[str, list[TenantService]]) -> None:
        """Publish a report; without pools it tells that this batcher exists."""
        if not self._producer.has_space(SERVICE.name, 0):
            return  # a newer record will be sent
        identity = self._identity
        self._producer.send(
            SERVICE.name,
            encode(ServiceReport(identity.batcher_id, identity.job_class, pools)),
            partition=0,
            key=identity.batcher_id.encode(),
            headers=kind_headers(ServiceReport),
        )
