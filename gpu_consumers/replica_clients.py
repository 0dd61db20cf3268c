"""The Kafka clients of a replica, which are connected while its model is loaded.

A call for a pool without replicas waits for all that follows the load. So only what needs the model
follows it: none of these clients joins a group, and no partition is assigned to a replica that
loads.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from core.clock import Clock
from gpu_consumers.batch_consumer import BatchConsumer, PartitionsCallback
from gpu_consumers.partition_growth import PartitionRequests, add_partitions
from gpu_consumers.settings import ReplicaSettings
from topics.clients.admin import TopicAdmin
from topics.clients.consumer import GroupConsumer
from topics.clients.producer import RecordProducer
from topics.records.access import gpu_group
from topics.records.catalogue import DEMAND, JOB_CLASSES, batches_topic
from topics.records.records import CallerHeartbeat, JobControl
from topics.settings import KafkaSettings
from topics.tail_readers.caller_liveness import CallerHeartbeatReader
from topics.tail_readers.job_controls import JobControlReader
from topics.tail_readers.topic_tail_reader import TopicTailReader

_START_S_MAX: Final = 60.0  # of each topic tail reader, until it reaches the end of its topic

LINGER_MS: Final = 3.0
"""Linger of what no caller waits for: outcomes of bulk items, grants, capacity, attempts.

A batch of 50 answers takes about a millisecond to encode: a linger no longer than that sends a
request for each. Replies to online calls take another producer."""


@dataclass(slots=True, eq=False)
class RecordListeners:
    """What the threads of the readers call, from when a replica is built; nothing before.

    A replica that has not joined its groups has no work that a record could stop.
    """

    on_control: Callable[[JobControl], None] | None = None
    on_caller: Callable[[CallerHeartbeat], None] | None = None

    def notify_control(self, record: JobControl) -> None:
        """Pass on a state of a job."""
        if self.on_control is not None:
            self.on_control(record)

    def notify_caller(self, record: CallerHeartbeat) -> None:
        """Pass on a heartbeat of an API process."""
        if self.on_caller is not None:
            self.on_caller(record)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineClients:
    """What only a replica with online calls needs."""

    callers: CallerHeartbeatReader
    replies: RecordProducer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaClients:
    """Connected clients; those that read a topic have reached its end."""

    listeners: RecordListeners
    producer: RecordProducer
    controls: JobControlReader
    demand: TopicTailReader
    consumers: Mapping[str, BatchConsumer]  # by job class; each joins its group when it runs
    online: OnlineClients | None
    closing: contextlib.ExitStack
    """Closes the producers and the readers."""


def classes_of(settings: ReplicaSettings) -> tuple[str, ...]:
    """Return the job classes that a replica runs."""
    return JOB_CLASSES if settings.job_class == "both" else (settings.job_class,)


def connect_clients(
    settings: ReplicaSettings, kafka: KafkaSettings, *, replica_id: str, clock: Clock
) -> ReplicaClients:
    """Connect the clients of a replica. Blocks; from any thread.

    Raises KafkaUnavailableError, and CommitsLostError once intake has found lost commits.
    """
    listeners = RecordListeners()
    with contextlib.ExitStack() as closing:
        producer = RecordProducer(
            kafka, client_id=replica_id, linger_ms=LINGER_MS, waits_for_partitions=True
        )
        closing.callback(producer.close)
        admin = TopicAdmin(kafka)
        consumers = {
            job_class: _consumer(
                settings,
                kafka,
                job_class,
                admin=admin,
                producer=producer,
                replica_id=replica_id,
                clock=clock,
            )
            for job_class in classes_of(settings)
        }
        controls = JobControlReader(
            kafka,
            client_id=replica_id,
            clock=clock,
            on_change=listeners.notify_control,
        )
        controls.start(_START_S_MAX)
        closing.callback(controls.stop)
        demand = TopicTailReader(
            kafka, DEMAND, client_id=f"{replica_id}-demand", reset_to_earliest=False
        )
        demand.end_offsets(_START_S_MAX)  # connects it: the replica reads once it is built
        online = None
        if "interactive" in consumers:
            online = _online_clients(kafka, replica_id, clock, listeners, closing)
        return ReplicaClients(
            listeners=listeners,
            producer=producer,
            controls=controls,
            demand=demand,
            consumers=consumers,
            online=online,
            closing=closing.pop_all(),
        )


def _online_clients(
    kafka: KafkaSettings,
    replica_id: str,
    clock: Clock,
    listeners: RecordListeners,
    closing: contextlib.ExitStack,
) -> OnlineClients:
    # A producer of its own, without linger: a token must not wait for outcomes of bulk items.
    replies = RecordProducer(
        kafka, client_id=f"{replica_id}-replies", linger_ms=0, waits_for_partitions=True
    )
    closing.callback(replies.close)
    callers = CallerHeartbeatReader(
        kafka,
        client_id=replica_id,
        clock=clock,
        on_heartbeat=listeners.notify_caller,
    )
    callers.start(_START_S_MAX)
    closing.callback(callers.stop)
    return OnlineClients(callers=callers, replies=replies)


def _consumer(  # noqa: PLR0913  each one is a part of the replica
    settings: ReplicaSettings,
    kafka: KafkaSettings,
    job_class: str,
    *,
    admin: TopicAdmin,
    producer: RecordProducer,
    replica_id: str,
    clock: Clock,
) -> BatchConsumer:
    """Return the reader of one class, which joins its group when it runs.

    Partitions are added now, and again before it joins: that may be much later.
    """
    is_online = job_class == "interactive"
    add = partial(add_partitions, admin, settings.pool, job_class)
    add(joining=1)
    requests = PartitionRequests(partial(add, joining=0), clock)

    def connect(on_assign: PartitionsCallback, on_revoke: PartitionsCallback) -> GroupConsumer:
        return GroupConsumer(
            kafka,
            group=gpu_group(settings.pool, job_class),
            topics=[batches_topic(settings.pool, job_class).name],
            client_id=f"{replica_id}-{job_class}",
            on_assign=on_assign,
            on_revoke=on_revoke,
            joins=False,
        )

    return BatchConsumer(
        connect,
        producer,
        in_flight_max=settings.in_flight_calls_max if is_online else settings.in_flight_batches_max,
        commit_interval_s=settings.commit_interval_s,
        clock=clock,
        keeps_calls=is_online,
        should_rejoin=requests.should_rejoin,
        before_join=partial(add, joining=1),
    )
