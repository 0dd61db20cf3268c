"""Publishes what this batcher serves to each tenant, and reads what other batchers serve."""

from collections.abc import Callable

from batcher.outbound.batch_sender import BatcherIdentity
from topics.clients.producer import RecordProducer
from topics.records.catalogue import SERVICE
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import ServiceReport, TenantService
from topics.settings import KafkaSettings
from topics.tail_readers.tail_reader_thread import TailReaderThread, decode_records
from topics.tail_readers.topic_tail_reader import TopicTailReader


class ServiceReader:
    """A thread that reads the reports of batchers from the topic's present end on."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        client_id: str,
        on_reports: Callable[[list[ServiceReport]], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """Both callbacks run in the thread."""
        self._on_reports = on_reports
        tail = TopicTailReader(
            settings, SERVICE, client_id=f"{client_id}-service", reset_to_earliest=False
        )
        self._thread = TailReaderThread(
            tail, self._read_records, name="service-tail", on_failure=on_failure
        )

    def start(self) -> None:
        """Read as soon as Kafka is available: without reports, batchers are only less fair."""
        self._thread.start_at_end()

    def stop(self) -> None:
        """Stop reading."""
        self._thread.stop()

    def _read_records(self, records: list[ReceivedRecord]) -> None:
        found = [report for _, report in decode_records(ServiceReport, records) if report]
        if found:
            self._on_reports(found)


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
