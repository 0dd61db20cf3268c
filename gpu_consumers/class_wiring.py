"""Builds the worker of one class from the dependencies that the classes share."""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Final

from core.clock import Clock
from core.supervised_tasks import SupervisedTasks
from gpu_consumers.batch_consumer import BatchConsumer, PartitionsCallback
from gpu_consumers.bulk.batch_execution import BatchExecution
from gpu_consumers.cancellation.liveness import BatchLiveness, CallLiveness
from gpu_consumers.class_workers import BulkWorker, OnlineWorker
from gpu_consumers.engines.engine import Engine
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher
from gpu_consumers.flow_control.pool_health import PoolHealth
from gpu_consumers.inflight.replies import ReplyPublisher
from gpu_consumers.online.call_completion import CallCompletion
from gpu_consumers.online.call_execution import CallExecution
from gpu_consumers.online.call_server import CallServer
from gpu_consumers.payloads.bodies import BatchBodies
from gpu_consumers.quarantine.attempt_log import AttemptLog
from gpu_consumers.quarantine.crash_attribution import CrashAttribution
from gpu_consumers.quarantine.locks import SharedExclusiveLock
from gpu_consumers.quarantine.quarantine import Quarantine
from gpu_consumers.quarantine.redelivered_calls import RerunPermissions, SuspectCalls
from gpu_consumers.settings import ReplicaSettings
from storage.objects.object_store import ObjectStore
from topics.clients.consumer import GroupConsumer
from topics.clients.producer import RecordProducer
from topics.records.catalogue import batches_topic
from topics.records.records import CallerHeartbeat
from topics.settings import KafkaSettings
from topics.tail_readers.caller_heartbeats import CallerHeartbeatReader
from topics.tail_readers.job_controls import JobControlReader

START_S_MAX: Final = 60.0
"""How long each topic tail reader may take to reach the end of its topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDeps:
    """The dependencies that the classes of a replica share."""

    settings: ReplicaSettings
    kafka: KafkaSettings
    engine: Engine
    replica_id: str
    producer: RecordProducer
    objects: ObjectStore
    controls: JobControlReader
    liveness: BatchLiveness
    pool: PoolHealth
    tasks: SupervisedTasks
    attribution: CrashAttribution
    clock: Clock
    closing: contextlib.ExitStack


def build_bulk_worker(shared: SharedDeps, capacity: CapacityPublisher) -> BulkWorker:
    """Return the worker of class bulk, whose consumer has joined its group."""
    lock = SharedExclusiveLock()
    execution = BatchExecution(
        engine=shared.engine,
        producer=shared.producer,
        bodies=BatchBodies(shared.objects, shared.clock),
        liveness=shared.liveness,
        capacity=capacity,
        lock=lock,
        attribution=shared.attribution,
    )
    log = AttemptLog(shared.kafka, shared.producer, client_id=shared.replica_id)
    crashes_max = shared.settings.crashes_max
    return BulkWorker(
        consumer=_consumer(shared, "bulk"),
        capacity=capacity,
        execution=execution,
        quarantine=Quarantine(execution, log, lock, shared.attribution, crashes_max=crashes_max),
        pool=shared.pool,
        tasks=shared.tasks,
        clock=shared.clock,
    )


def build_online_worker(
    shared: SharedDeps, capacity: CapacityPublisher
) -> tuple[OnlineWorker, ReplyPublisher]:
    """Return the worker of class interactive, and the publisher that fails when it loses a reply.

    The tail reader of callers has started and the consumer has joined its group, in this order.
    """
    # A producer of its own, without linger: a token must not wait for outcomes of bulk items.
    reply_producer = RecordProducer(
        shared.kafka, client_id=f"{shared.replica_id}-replies", linger_ms=0
    )
    shared.closing.callback(reply_producer.close)
    replies = ReplyPublisher(reply_producer, shared.replica_id, asyncio.get_running_loop())

    def on_caller_record(record: CallerHeartbeat) -> None:
        if record.aborted or record.permitted or record.leaving:
            shared.tasks.call_from_thread(execution.apply_caller_record, record)

    callers = CallerHeartbeatReader(
        shared.kafka, client_id=shared.replica_id, clock=shared.clock, on_heartbeat=on_caller_record
    )
    suspects = SuspectCalls(
        AttemptLog(shared.kafka, shared.producer, client_id=f"{shared.replica_id}-calls"),
        shared.attribution,
        crashes_max=shared.settings.crashes_max,
    )
    execution = CallExecution(
        server=CallServer(shared.engine, shared.objects, shared.pool, shared.clock),
        completion=CallCompletion(shared.producer, shared.objects, shared.pool),
        replies=replies,
        permissions=RerunPermissions(replies.request_permission),
        liveness=CallLiveness(callers, shared.controls, shared.clock),
        capacity=capacity,
        pool=shared.pool,
        suspects=suspects,
        clock=shared.clock,
    )
    callers.start(START_S_MAX)
    shared.closing.callback(callers.stop)
    worker = OnlineWorker(
        consumer=_consumer(shared, "interactive"),
        capacity=capacity,
        execution=execution,
        suspects=suspects,
        tasks=shared.tasks,
    )
    return worker, replies


def _consumer(shared: SharedDeps, job_class: str) -> BatchConsumer:
    settings, is_online = shared.settings, job_class == "interactive"

    def connect(on_assign: PartitionsCallback, on_revoke: PartitionsCallback) -> GroupConsumer:
        return GroupConsumer(
            shared.kafka,
            group=f"gpu-{settings.pool}-{job_class}",
            topics=[batches_topic(settings.pool, job_class).name],
            client_id=f"{shared.replica_id}-{job_class}",
            on_assign=on_assign,
            on_revoke=on_revoke,
        )

    return BatchConsumer(
        connect,
        shared.producer,
        in_flight_max=settings.in_flight_calls_max if is_online else settings.in_flight_batches_max,
        commit_interval_s=settings.commit_interval_s,
        clock=shared.clock,
        keeps_calls=is_online,
    )
