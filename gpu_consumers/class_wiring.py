"""Wires one lane of a replica, for the class that it serves, around what the lanes share."""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Final

from core.clock import Clock
from core.supervised_tasks import SupervisedTasks
from gpu_consumers.bulk.batch_execution import BatchExecution, ExecutionParts
from gpu_consumers.cancellation.cutting import Cutting
from gpu_consumers.cancellation.wanted import Wanted
from gpu_consumers.class_workers import BulkLane, Lane, OnlineLane
from gpu_consumers.consumer import Assigned, BatchConsumer
from gpu_consumers.engines.engine import Engine
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher
from gpu_consumers.flow_control.pool_health import PoolHealth
from gpu_consumers.inflight.replies import ReplyPublisher
from gpu_consumers.online.call_execution import OnlineExecution, OnlineParts
from gpu_consumers.quarantine.attempt_log import AttemptLog
from gpu_consumers.quarantine.crash_attribution import Trials
from gpu_consumers.quarantine.quarantine import Isolation
from gpu_consumers.quarantine.suspect_calls import SuspectCalls
from gpu_consumers.quarantine.turns import Turns
from gpu_consumers.settings import ReplicaSettings
from storage.objects.object_store import ObjectStore
from topics.clients.consumer import LogConsumer
from topics.clients.producer import LogProducer
from topics.records.catalogue import batches_topic
from topics.records.records import CallerNews
from topics.settings import KafkaSettings
from topics.tail_readers.callers import Callers
from topics.tail_readers.job_controls import JobControls

START_S_MAX: Final = 60.0
"""How long each follower of a topic may take to reach its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParts:
    """What the lanes of a replica share."""

    settings: ReplicaSettings
    kafka: KafkaSettings
    engine: Engine
    replica_id: str
    producer: LogProducer
    objects: ObjectStore
    controls: JobControls
    wanted: Wanted
    pool: PoolHealth
    tasks: SupervisedTasks
    trials: Trials
    clock: Clock
    closing: contextlib.ExitStack


def wire_bulk_lane(shared: SharedParts, capacity: CapacityPublisher) -> tuple[BulkLane, Cutting]:
    """Return the lane, and what is to watch its runs."""
    turns = Turns()
    execution = BatchExecution(
        ExecutionParts(
            engine=shared.engine,
            producer=shared.producer,
            objects=shared.objects,
            wanted=shared.wanted,
            capacity=capacity,
            job_class="bulk",
            clock=shared.clock,
        ),
        turns,
        shared.trials,
    )
    log = AttemptLog(shared.kafka, shared.producer, client_id=shared.replica_id)
    isolation = Isolation(
        execution, log, turns, shared.trials, crashes_max=shared.settings.crashes_max
    )
    consumer = _consumer(shared, "bulk")
    lane = BulkLane(consumer, capacity, execution, isolation, (shared.pool, shared.tasks))
    return lane, Cutting(lambda: execution.runs, shared.wanted)


def wire_online_lane(
    shared: SharedParts, capacity: CapacityPublisher
) -> tuple[Lane, OnlineExecution, ReplyPublisher]:
    """Return the lane, what is to watch its calls, and what fails when a reply is not taken."""
    loop = asyncio.get_running_loop()
    # A producer of its own: a token waits for no bulk outcome, and for no linger.
    speaking = LogProducer(shared.kafka, client_id=f"{shared.replica_id}-replies", linger_ms=0)
    shared.closing.callback(speaking.close)
    replies = ReplyPublisher(speaking, shared.replica_id, loop)

    def on_news(news: CallerNews) -> None:
        if news.aborted or news.permitted or news.leaving:
            shared.tasks.call_from_thread(execution.heard, news)

    callers = Callers(
        shared.kafka, client_id=shared.replica_id, clock=shared.clock, on_news=on_news
    )
    execution = OnlineExecution(
        OnlineParts(
            engine=shared.engine,
            producer=shared.producer,
            replies=replies,
            objects=shared.objects,
            callers=callers,
            controls=shared.controls,
            capacity=capacity,
            pool=shared.pool,
            tasks=shared.tasks,
            suspects=SuspectCalls(
                AttemptLog(shared.kafka, shared.producer, client_id=f"{shared.replica_id}-calls"),
                shared.trials,
                crashes_max=shared.settings.crashes_max,
            ),
            clock=shared.clock,
        )
    )
    callers.start(START_S_MAX)
    shared.closing.callback(callers.stop)
    return OnlineLane(_consumer(shared, "interactive"), capacity, execution), execution, replies


def _consumer(shared: SharedParts, job_class: str) -> BatchConsumer:
    settings, is_online = shared.settings, job_class == "interactive"

    def connect(on_assign: Assigned, on_revoke: Assigned) -> LogConsumer:
        return LogConsumer(
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
