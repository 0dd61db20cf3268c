"""Sends records: an idempotent producer with acks=all and a poll thread for delivery reports.

Not confluent's `AIOProducer`: it refuses headers and adds 100 ms or more.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from core.limits import RECORD_BYTES_MAX
from core.runtime.futures import resolve_future
from topics.clients.client_factory import new_client
from topics.clients.offset_tracker import Partition
from topics.clients.partition_backlogs import PartitionBacklogs
from topics.errors import DeliveryError, DeliveryPendingError, ProducerFatalError
from topics.records.codec import Headers
from topics.settings import KafkaSettings

_LOG = logging.getLogger(__name__)

OnDelivery = Callable[[BaseException | None], None]


class RecordSender(Protocol):
    """The part of `RecordProducer` that sends."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        partition: int,
        key: bytes | None = None,
        headers: Headers | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Queue a record. Raises DeliveryError."""
        ...


class PartitionSender(RecordSender, Protocol):
    """The part of `RecordProducer` for senders that keep partitions apart."""

    def has_space(self, topic: str, partition: int) -> bool:
        """Return whether a record may be sent to the partition now."""
        ...

    def is_unavailable(self, topic: str, partition: int) -> bool:
        """Return whether records wait for the partition and none was acknowledged for long."""
        ...


_QUEUE_KBYTES_MAX = 64 * 1024
_QUEUE_RECORDS_MAX = 100_000
_POLL_S = 0.1
_REPORT_PARTITIONS_S = 1.0
_FOREVER_MS = 0
_METADATA_S_MAX = 0.5
_NEW_PARTITION_S_MAX = 5.0
_METADATA_PAUSE_S = 0.005
_REPORT_S_MAX = 5.0  # from a record's delivery timeout until the report of its failure


class RecordProducer:
    """Sends records; safe for threads. Topic names are given without the prefix."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        client_id: str,
        linger_ms: float = 5.0,
        full_queue_wait_s: float | None = None,
        waits_for_partitions: bool = False,
    ) -> None:
        """Start the poll thread. `linger_ms`: 0 for latency, 5 for throughput.

        `full_queue_wait_s` bounds how long `send` may block; None means the delivery timeout.
        With `waits_for_partitions` no record fails because its partition is unavailable: it stays
        queued until the partition returns, and other partitions go on. A record that timed out
        would make librdkafka stop all partitions and start a new epoch, after which records of
        healthy partitions may be written twice. The sender bounds the queue with `has_space`.
        """
        self._prefix = settings.topic_prefix
        self._backlogs = PartitionBacklogs(settings.partition_timeout_s)
        self._delivery_s_max = settings.delivery_timeout_s + _REPORT_S_MAX
        self._full_queue_wait_s = (
            settings.delivery_timeout_s if full_queue_wait_s is None else full_queue_wait_s
        )
        self._producer = new_client(
            Producer,
            settings.client_options()
            | {
                "client.id": client_id,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": linger_ms,
                "compression.type": settings.compression,
                "batch.size": 1_000_000,
                "message.max.bytes": RECORD_BYTES_MAX,
                "delivery.timeout.ms": (
                    _FOREVER_MS if waits_for_partitions else int(settings.delivery_timeout_s * 1000)
                ),
                "queue.buffering.max.kbytes": _QUEUE_KBYTES_MAX,
                "queue.buffering.max.messages": _QUEUE_RECORDS_MAX,
            },
        )
        self._condition = threading.Condition()
        self._sent = 0
        self._reported = 0
        self._failure: DeliveryError | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._poll, name="producer-poll", daemon=True)
        self._thread.start()

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        partition: int,
        key: bytes | None = None,
        headers: Headers | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Queue a record; blocks for at most `full_queue_wait_s` while the local queue is full.

        `on_delivery` is called in the poll thread with None or the failure. Raises DeliveryError.
        """
        place, byte_count = (topic, partition), len(value or b"")
        report = self._reporter(on_delivery, place, byte_count)
        self._backlogs.add(place, byte_count)
        produce = partial(
            self._producer.produce,
            self._prefix + topic,
            value,
            key,
            partition,
            on_delivery=report,
            headers=headers,
        )
        try:
            self._produce(produce, topic)
        except BaseException:  # whatever failed, the record is not queued
            self._backlogs.remove(place, byte_count)
            raise
        with self._condition:
            self._sent += 1

    def has_space(self, topic: str, partition: int) -> bool:
        """Return whether a record may be sent to the partition now.

        False while it is unavailable, has much unacknowledged, or the queue is nearly full. The
        limits leave the queue to the partitions that are available. For a sender that would
        otherwise queue records for as long as the partition is unavailable.
        """
        return self._backlogs.has_space((topic, partition))

    def is_unavailable(self, topic: str, partition: int) -> bool:
        """Return whether records wait for the partition and none was acknowledged for long."""
        return self._backlogs.is_unavailable((topic, partition))

    def unavailable_partitions(self) -> list[Partition]:
        """Return the topic, without prefix, and number of each unavailable partition."""
        return self._backlogs.unavailable()

    def _produce(self, produce: Callable[[], None], topic: str) -> None:
        """Queue a record; wait while the queue is full."""
        started_s = time.monotonic()
        deadline = started_s + self._full_queue_wait_s
        while True:
            try:
                produce()
            except BufferError:
                if time.monotonic() > deadline:
                    raise DeliveryError("the local queue stayed full") from None
                time.sleep(0.005)  # the poll thread empties the queue
            except KafkaException as error:
                is_new = error.args[0].code() == KafkaError._UNKNOWN_PARTITION  # noqa: SLF001
                if not is_new or time.monotonic() > started_s + _NEW_PARTITION_S_MAX:
                    raise _failure(error.args[0]) from None
                self._read_partitions(topic)
            else:
                return

    def _read_partitions(self, topic: str) -> None:
        """Read the partitions of a topic that has grown: the client itself does so after minutes.

        Blocks for about 5 ms once for each growth, and while a broker does not know it yet.
        """
        with suppress(KafkaException):
            self._producer.list_topics(self._prefix + topic, timeout=_METADATA_S_MAX)
        time.sleep(_METADATA_PAUSE_S)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every record sent so far is acknowledged; for use by a single sending thread.

        `timeout_s` None waits as long as a delivery may take. Raises DeliveryError when a record
        sent since the last flush failed, DeliveryPendingError after `timeout_s`.
        """
        if timeout_s is None:
            timeout_s = self._delivery_s_max
        with self._condition:
            goal = self._sent
            is_done = self._condition.wait_for(lambda: self._reported >= goal, timeout_s)
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if not is_done:
            raise DeliveryPendingError

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        *,
        partition: int,
        key: bytes | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Send a record and wait until it is acknowledged, on an event loop.

        Raises DeliveryError.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def report(failure: BaseException | None) -> None:
            loop.call_soon_threadsafe(resolve_future, done, failure)

        self.send(topic, value, partition=partition, key=key, headers=headers, on_delivery=report)
        await done

    def close(self, timeout_s: float = 10.0) -> None:
        """Flush for at most `timeout_s` and stop the thread; a second call does nothing."""
        if self._closed:
            return
        self._producer.flush(timeout_s)  # its result also counts log lines and error events
        with self._condition:  # the poll thread may be reporting the last ones now
            self._condition.wait_for(lambda: self._reported >= self._sent, _POLL_S)
            left = self._sent - self._reported
        if left:  # their senders got no acknowledgement, so nothing relies on them
            _LOG.warning("records were not delivered", extra={"count": left})
        self._closed = True
        self._thread.join(timeout_s)

    def _poll(self) -> None:
        report_at_s = time.monotonic() + _REPORT_PARTITIONS_S
        while not self._closed:
            self._producer.poll(_POLL_S)
            if time.monotonic() >= report_at_s:
                report_at_s = time.monotonic() + _REPORT_PARTITIONS_S
                self._backlogs.report_unavailable()

    def _reporter(
        self, on_delivery: OnDelivery | None, place: Partition, byte_count: int
    ) -> Callable[[KafkaError | None, Message], None]:
        def report(error: KafkaError | None, _message: Message) -> None:
            failure = None if error is None else _failure(error)
            self._backlogs.remove(place, byte_count)
            try:
                if on_delivery is not None:
                    on_delivery(failure)
            except Exception:  # noqa: BLE001  the poll thread must report all later deliveries
                _LOG.exception("a delivery callback failed")
            finally:  # after the callback, so that its effects precede the end of a flush
                with self._condition:
                    self._reported += 1
                    self._failure = self._failure or failure
                    self._condition.notify_all()

        return report


def close_producers(producers: Iterable[RecordProducer], timeout_s: float = 10.0) -> None:
    """Close producers one after the other, within `timeout_s` in all."""
    deadline = time.monotonic() + timeout_s
    for producer in producers:
        producer.close(max(0.0, deadline - time.monotonic()))


def _failure(error: KafkaError) -> DeliveryError:
    """Return the error with the broker's message, which never holds a record's content."""
    is_fatal = error.fatal() or error.code() == KafkaError._FATAL  # noqa: SLF001
    kind = ProducerFatalError if is_fatal else DeliveryError
    return kind(f"{error.name()}: {error.str()}")
