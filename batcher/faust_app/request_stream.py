"""The Faust app of one job class: delivers records in order, with manual acknowledgement.

The agent only reads. An exception that left it would lose its event silently. For backpressure
the agent just stops iterating; single partitions are paused while their dead letters wait.
"""

import asyncio
import logging
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import faust
from aiokafka.errors import KafkaError
from faust.auth import Credentials, SASLCredentials, SSLCredentials
from faust.types import TP
from faust.types.auth import SASLMechanism

from batcher import metrics
from batcher.faust_app import faust_patches, fetch_codec, single_loop_client
from batcher.faust_app.fetch_state import unreadable_partitions
from batcher.settings import BatcherSettings
from topics.clients.group_membership import GroupMembership
from topics.clients.offset_tracker import Partition
from topics.records.catalogue import REQUESTS
from topics.records.received_record import ReceivedRecord
from topics.settings import KafkaSettings

_LOG = logging.getLogger(__name__)

READ_SLICE_S_MAX = 0.001
"""Time after which reading yields to the dispatcher: a full buffer is read without awaiting."""

UNKNOWN_END_OFFSET = sys.maxsize
"""End offset of a partition that the broker did not report: every record may be a redelivery."""

REQUEST_TIMEOUT_S = 40.0

POLL_INTERVAL_S_MAX = 14 * 24 * 3600.0
"""Time without a poll after which aiokafka leaves the group for good. While every pool is
unavailable nothing is polled, however long that lasts; `watchdog` detects real stalls.
The broker is given another value, `broker_rebalance_timeout`."""


def group_of(job_class: str) -> str:
    """Return the consumer group of a class, without prefix."""
    return f"batcher-{job_class}"


def build_app(kafka: KafkaSettings, settings: BatcherSettings, datadir: Path) -> faust.App:
    """Return the app of one class, patched and ready for `RequestStream`."""
    faust_patches.install()
    fetch_codec.install()
    app = faust.App(
        kafka.topic_prefix + group_of(settings.job_class),
        broker=[f"kafka://{address}" for address in kafka.bootstrap_servers.split(",")],
        broker_credentials=credentials(kafka),
        broker_client_id="millrace-batcher",
        broker_commit_interval=kafka.commit_interval_s,
        broker_session_timeout=kafka.session_timeout_s,
        broker_heartbeat_interval=kafka.heartbeat_s,
        broker_request_timeout=max(REQUEST_TIMEOUT_S, kafka.session_timeout_s),
        broker_max_poll_interval=POLL_INTERVAL_S_MAX,
        broker_max_poll_records=settings.poll_records,
        stream_buffer_maxsize=settings.buffer_records,
        stream_wait_empty=False,  # True: unacknowledged events would block stops and rebalances
        consumer_auto_offset_reset="earliest",
        key_serializer="raw",
        value_serializer="raw",
        topic_disable_leader=True,
        topic_allow_declare=False,
        web_enabled=False,
        datadir=datadir,
    )
    if settings.job_class == "interactive":
        single_loop_client.install(app, fetch_gap_s=settings.fetch_gap_ms / 1000)
    return app


def credentials(kafka: KafkaSettings) -> Credentials | None:
    """Return Faust's credentials, from the settings that librdkafka's clients use too."""
    context = kafka.ssl_context()
    if kafka.security_protocol.startswith("SASL"):
        secret = kafka.sasl_password
        return SASLCredentials(
            username=kafka.sasl_username or "",
            password=secret.get_secret_value() if secret else "",
            mechanism=SASLMechanism(kafka.sasl_mechanism or "PLAIN"),
            ssl_context=context,
        )
    return SSLCredentials(context) if context is not None else None


class StreamListener(Protocol):
    """Receives the records of a `RequestStream`; every method runs on the app's loop."""

    def on_record(self, record: ReceivedRecord, event: Any) -> None:
        """Accept a record and keep its event until `RequestStream.acknowledge`.

        The stream clears the event's value afterwards: a waiting event needs its offset only.
        """

    async def wait_until_ready(self) -> None:
        """Return once another record can be accepted."""

    def on_assign(self, end_offsets: Mapping[Partition, int]) -> None:
        """Partitions were assigned, with these end offsets; called before their first record."""

    def on_revoke(self, partitions: list[Partition]) -> None:
        """Partitions were revoked."""

    def on_failure(self, failure: BaseException) -> None:
        """The role must end; no further record is delivered."""


class RequestStream:
    """One agent on `requests.<class>`, and the partitions that are assigned to it."""

    def __init__(
        self, app: faust.App, kafka: KafkaSettings, job_class: str, listener: StreamListener
    ) -> None:
        """Deliver to `listener` once the app starts."""
        self._app, self._prefix, self._listener = app, kafka.topic_prefix, listener
        group = self._prefix + group_of(job_class)
        self._membership = GroupMembership(kafka, group, "classic")
        self.is_stopping = False
        self.rebalance_count = 0  # revocations since the start
        self._paused: frozenset[Partition] = frozenset()
        topic = app.topic(self._prefix + REQUESTS[job_class].name, value_type=bytes, key_type=bytes)
        app.agent(topic, name="requests")(self._read)
        app.on_partitions_revoked.connect(self._on_revoked, weak=False)
        app.on_rebalance_complete.connect(self._on_rebalanced, weak=False)

    def remove_predecessor(self) -> None:
        """Remove the group membership of a batcher that was killed on this host; blocks."""
        self._membership.remove_predecessor()

    @staticmethod
    def acknowledge(event: Any) -> None:
        """Let Faust commit past the event with its next periodic commit."""
        event.ack()

    @property
    def has_ended(self) -> bool:
        """Whether Faust stopped by itself: a crash of Faust only ends its tasks."""
        return bool(self._app.should_stop)

    @property
    def committed_offsets(self) -> int:
        """Sum of the offsets that Faust has committed."""
        return sum(self._app.monitor.tp_committed_offsets.values())

    @property
    def partitions(self) -> set[int]:
        """The assigned partitions."""
        return {assigned.partition for assigned in self._app.consumer.assignment()}

    @property
    def read_partitions(self) -> set[int]:
        """The assigned partitions that are not paused."""
        return self.partitions - {number for _, number in self._paused}

    def unreadable_partitions(self, *, now_ms: float) -> list[Partition]:
        """Return the assigned partitions that cannot be read at Unix time `now_ms`."""
        client = faust_patches.client_of(self._app)
        if client is None:
            return []
        return [*map(self._partition_of, unreadable_partitions(client, now_ms=now_ms))]

    def pause_only(self, partitions: frozenset[Partition]) -> None:
        """Fetch nothing more of these partitions, and all others again.

        Records that Faust has fetched are still delivered. A rebalance ends all pauses.
        """
        if not partitions and not self._paused:
            return  # also before the app has started
        consumer = self._app.consumer
        if resume := self._paused - partitions:
            faust_patches.resume_partitions(consumer, set(map(self._faust_partition, resume)))
        if partitions:  # also those that are paused: Faust resumes one when its buffer empties
            consumer.pause_partitions(map(self._faust_partition, partitions))
        self._paused = partitions

    async def _read(self, stream: Any) -> None:
        """Deliver records while the listener is ready. A failure ends the role, not the agent."""
        unacknowledged = stream.noack()
        async for first in unacknowledged.events():
            slice_began_s = monotonic()
            for event in self._with_buffered(first, unacknowledged.channel.queue):
                if self.is_stopping:
                    continue  # not acknowledged: delivered again after the restart
                try:
                    self._listener.on_record(received_record(event.message, self._prefix), event)
                    event.value = event.message.value = None  # an event may wait long for its ack
                    if monotonic() - slice_began_s > READ_SLICE_S_MAX:
                        await asyncio.sleep(0)
                        slice_began_s = monotonic()
                    await self._listener.wait_until_ready()
                except asyncio.CancelledError:
                    raise
                except Exception as failure:  # noqa: BLE001 - the process loop reports every failure
                    self.is_stopping = True
                    self._listener.on_failure(failure)

    def _with_buffered(self, first: Any, queue: Any) -> Iterator[Any]:
        """Yield `first` and the events that Faust has buffered after it.

        Faust's own iterator yields to the loop before each record, so each online call would be
        dispatched as a batch of its own. Like Faust's, this one skips records fetched before a
        rebalance; they are delivered again.
        """
        yield first
        app = self._app
        while not queue.empty():
            event = queue.get_nowait()
            message = event.message
            if app.flow_control.is_active() and message.generation_id == app.consumer_generation_id:
                app.monitor.stream_inbound_time[message.tp] = monotonic()
                yield event

    async def _on_revoked(self, _app: Any, revoked: set[Any], **_: Any) -> None:
        metrics.REBALANCES.inc()
        self.rebalance_count += 1
        self._paused -= {self._partition_of(each) for each in revoked}
        self._listener.on_revoke([self._partition_of(each) for each in revoked])

    async def _on_rebalanced(self, _app: Any, **_: Any) -> None:
        """Runs after an assignment and before its first record."""
        self._membership.record_member_id(faust_patches.member_id(self._app))
        assigned = self._app.consumer.assignment()
        ends: dict[Any, int | None] = dict.fromkeys(assigned, UNKNOWN_END_OFFSET)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                ends = await self._app.consumer.highwaters(*assigned) if assigned else {}
        except (TimeoutError, KafkaError):
            _LOG.warning("end offsets are unknown: every record counts as a redelivery")
        self._listener.on_assign({self._partition_of(each): end or 0 for each, end in ends.items()})

    def _faust_partition(self, partition: Partition) -> TP:
        topic, number = partition
        return TP(self._prefix + topic, number)

    def _partition_of(self, topic_partition: Any) -> Partition:
        return topic_partition.topic.removeprefix(self._prefix), topic_partition.partition


def received_record(message: Any, prefix: str) -> ReceivedRecord:
    """Return a Faust message as a record of the log."""
    return ReceivedRecord(
        topic=message.topic.removeprefix(prefix),
        partition=message.partition,
        offset=message.offset,
        key=message.key,
        headers=list(message.headers or ()),
        value=message.value,
        appended_ms=int(message.timestamp * 1000),
    )
