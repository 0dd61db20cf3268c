"""The Faust app of one class: records in, in order, with manual acknowledgement.

Never more than reading: an exception that left the agent would lose its event without a trace, and
pausing partitions would drop fetched records, so whoever is full just stops iterating.
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
from faust.types.auth import SASLMechanism

from batcher import metrics
from batcher.faust_app import faust_patches, fetch_codec, single_loop_client
from batcher.settings import BatcherSettings
from topics.clients.memberships import Membership
from topics.clients.offsets import Partition
from topics.records.catalogue import REQUESTS
from topics.records.received import Received
from topics.settings import KafkaSettings

_LOG = logging.getLogger(__name__)

READ_SLICE_S_MAX = 0.001
"""Time after which the dispatcher gets its turn: a full buffer is read without waiting."""

UNKNOWN_END_OFFSET = sys.maxsize
"""End offset of a partition when the broker does not say: whatever comes may have come before."""

REQUEST_TIMEOUT_S = 40.0

POLL_INTERVAL_S_MAX = 14 * 24 * 3600.0
"""Time without a poll after which aiokafka leaves the group, and never comes back. With every pool
away nothing is polled for as long as that lasts; `watchdog` judges who could work and does not.
The broker is told another number, `broker_rebalance_timeout`."""


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
        stream_wait_empty=False,  # else held events hang every stop and rebalance
        consumer_auto_offset_reset="earliest",
        key_serializer="raw",
        value_serializer="raw",
        topic_disable_leader=True,
        topic_allow_declare=False,
        web_enabled=False,
        datadir=datadir,
    )
    if settings.job_class == "interactive":
        single_loop_client.install_single_loop_client(app, fetch_gap_s=settings.fetch_gap_ms / 1000)
    return app


def credentials(kafka: KafkaSettings) -> Credentials | None:
    """Return how Faust authenticates, from the settings that librdkafka's clients use too."""
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


class StreamOwner(Protocol):
    """Who takes the records; every method is called on the app's loop."""

    def take(self, record: Received, event: Any) -> None:
        """Take a record over and keep its event until `RequestStream.acknowledge`.

        The event loses its value behind this: whoever waits for its turn needs the offset alone.
        """
        ...

    async def room(self) -> None:
        """Return once more may be taken."""
        ...

    def assigned(self, end_offsets: Mapping[Partition, int]) -> None:
        """Partitions are ours, with these end offsets; called before their first record."""
        ...

    def revoked(self, partitions: list[Partition]) -> None:
        """Partitions are no longer ours."""
        ...

    def failed(self, failure: BaseException) -> None:
        """The role must end; nothing more is taken."""
        ...


class RequestStream:
    """One agent on `requests.<class>` and the news of what partitions it has."""

    def __init__(
        self,
        app: faust.App,
        kafka: KafkaSettings,
        job_class: str,
        owner: StreamOwner,
    ) -> None:
        """Deliver to `owner` once the app starts."""
        self._app, self._prefix, self._owner = app, kafka.topic_prefix, owner
        group = self._prefix + group_of(job_class)
        self._membership = Membership(kafka, group, "classic")
        self.stopping = False
        self.rebalance_count = 0  # as often as partitions were revoked
        topic = app.topic(self._prefix + REQUESTS[job_class].name, value_type=bytes, key_type=bytes)
        app.agent(topic, name="requests")(self._read)
        app.on_partitions_revoked.connect(self._on_revoked, weak=False)
        app.on_rebalance_complete.connect(self._on_rebalanced, weak=False)

    def succeed(self) -> None:
        """Take the place of a batcher that was killed here; blocks. See `Membership`."""
        self._membership.succeed()

    @staticmethod
    def acknowledge(event: Any) -> None:
        """Let Faust commit past the event, in its own time."""
        event.ack()

    @property
    def has_ended(self) -> bool:
        """Whether Faust stopped by itself: it crashes quietly, its tasks just end."""
        return bool(self._app.should_stop)

    @property
    def committed_offsets(self) -> int:
        """Sum of the offsets that Faust has committed."""
        return sum(self._app.monitor.tp_committed_offsets.values())

    @property
    def partitions(self) -> set[int]:
        """The partitions that are ours now."""
        return {place.partition for place in self._app.consumer.assignment()}

    async def _read(self, stream: Any) -> None:
        """Take records while there is room. Whatever goes wrong ends the role, not the agent."""
        silent = stream.noack()
        async for first in silent.events():
            turn_s = monotonic()
            for event in self._with_buffered(first, silent.channel.queue):
                if self.stopping:
                    continue  # not acknowledged: delivered again after the restart
                try:
                    self._owner.take(received_record(event.message, self._prefix), event)
                    event.value = event.message.value = None  # an event may wait long for its ack
                    if monotonic() - turn_s > READ_SLICE_S_MAX:
                        await asyncio.sleep(0)
                        turn_s = monotonic()
                    await self._owner.room()
                except asyncio.CancelledError:
                    raise
                except Exception as failure:  # noqa: BLE001 - the process loop: handed on, the end
                    self.stopping = True
                    self._owner.failed(failure)

    def _with_buffered(self, first: Any, queue: Any) -> Iterator[Any]:
        """Return `first` and what Faust has buffered behind it.

        Its own iterator gives the loop away before each record: every online call would leave as a
        batch of its own. Like it, skip records from before a rebalance, which come again.
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
        self._owner.revoked(self._named(revoked))

    async def _on_rebalanced(self, _app: Any, **_: Any) -> None:
        """Runs after an assignment and before its first record."""
        self._membership.note(faust_patches.member_id(self._app))
        places = self._app.consumer.assignment()
        ends: dict[Any, int | None] = dict.fromkeys(places, UNKNOWN_END_OFFSET)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                ends = await self._app.consumer.highwaters(*places) if places else {}
        except (TimeoutError, KafkaError):
            _LOG.warning("end offsets are unknown: every record counts as a redelivery")
        self._owner.assigned({self._name(place): end or 0 for place, end in ends.items()})

    def _named(self, places: set[Any]) -> list[Partition]:
        return [self._name(place) for place in places]

    def _name(self, place: Any) -> Partition:
        return place.topic.removeprefix(self._prefix), place.partition


def received_record(message: Any, prefix: str) -> Received:
    """Return a Faust message as a record of the log."""
    return Received(
        topic=message.topic.removeprefix(prefix),
        partition=message.partition,
        offset=message.offset,
        key=message.key,
        headers=list(message.headers or ()),
        value=message.value,
        appended_ms=int(message.timestamp * 1000),
    )
