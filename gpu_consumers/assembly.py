"""Wires the parts of a replica around a started engine: one lane for each class it serves."""

import asyncio
import contextlib
import math
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from core.clock import Clock, SystemClock
from core.database_time import DatabaseTime
from core.ids import new_uuid
from gpu_consumers.attempt_log import AttemptLog
from gpu_consumers.capacity import CapacityPublisher, ReplicaIdentity
from gpu_consumers.consumer import Assigned, BatchConsumer
from gpu_consumers.cutting import Cutting
from gpu_consumers.engine_watch import watch_progress
from gpu_consumers.engines.engine import Engine
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.execution import BatchExecution, ExecutionParts
from gpu_consumers.isolation import Isolation
from gpu_consumers.lanes import BulkLane, Lane, OnlineLane
from gpu_consumers.online_execution import OnlineExecution, OnlineParts
from gpu_consumers.pool_health import PoolHealth
from gpu_consumers.replica import Replica, ReplicaParts, Watch
from gpu_consumers.replies import ReplyPublisher
from gpu_consumers.running_tasks import RunningTasks
from gpu_consumers.settings import ReplicaSettings
from gpu_consumers.suspect_calls import SuspectCalls
from gpu_consumers.turns import Turns
from gpu_consumers.wanted import Wanted
from storage.objects import ObjectStore
from topics.callers import Callers
from topics.catalogue import DEMAND, JOB_CLASSES, batches_topic
from topics.consumer import LogConsumer
from topics.control import JobControls
from topics.producer import LogProducer
from topics.records import CallerNews, JobControl
from topics.settings import KafkaSettings
from topics.tail import TopicTail

_START_S_MAX = 60.0


def engine_settings_of(env: Mapping[str, str], settings: ReplicaSettings) -> EngineSettings:
    """Return the engine's settings; without online calls nothing is kept free for them."""
    found = EngineSettings.from_env(env)
    if settings.job_class == "bulk":
        return found.model_copy(update={"interactive_headroom": 0})
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
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
    tasks: RunningTasks
    one_at_a_time: asyncio.Lock  # held by whoever alone may end the process
    clock: Clock
    closing: contextlib.ExitStack


def build(
    settings: ReplicaSettings,
    kafka: KafkaSettings,
    engine: Engine,
    objects: ObjectStore,
    *,
    silence_s_max: float = math.inf,
) -> tuple[Replica, contextlib.ExitStack]:
    """Build a replica on the running event loop; the stack releases its parts.

    It fails when its engine runs bulk items for `silence_s_max` and none of them ends.
    """
    replica_id = f"{settings.pool}-{socket.gethostname()}-{new_uuid().hex[:8]}"
    clock = SystemClock()
    closing = contextlib.ExitStack()
    producer = LogProducer(kafka, client_id=replica_id, linger_ms=1.0)
    closing.callback(producer.close)
    database_time = DatabaseTime(max)
    changed = _Changed(asyncio.get_running_loop())
    controls = JobControls(kafka, client_id=replica_id, on_change=changed.tell)
    controls.start(_START_S_MAX)
    closing.callback(controls.stop)
    classes = JOB_CLASSES if settings.job_class == "both" else (settings.job_class,)
    capacities = {
        name: _capacity(_identity(name, replica_id, settings), engine, producer, database_time)
        for name in classes
    }
    common = _Common(
        settings=settings,
        kafka=kafka,
        engine=engine,
        replica_id=replica_id,
        producer=producer,
        objects=objects,
        controls=controls,
        wanted=Wanted(controls, database_time, clock),
        pool=PoolHealth([*capacities.values()], backoff_s_max=settings.unavailable_backoff_s_max),
        tasks=RunningTasks(asyncio.get_running_loop()),
        one_at_a_time=asyncio.Lock(),
        clock=clock,
        closing=closing,
    )
    lanes: list[Lane] = []
    watches: list[Watch] = []
    failures = []
    if bulk := capacities.get("bulk"):
        lane, cutting = _bulk_lane(common, bulk)
        lanes.append(lane)
        changed.cuttings.append(cutting)
        watches.append(cutting.watch)
        watches.append(partial(_watch_bulk, engine, bulk, silence_s_max))
    if online := capacities.get("interactive"):
        online_lane, execution, replies = _online_lane(common, online)
        lanes.append(online_lane)
        watches.append(execution.watch)
        failures.append(replies.failed)
    parts = ReplicaParts(
        lanes=lanes,
        pool=common.pool,
        tasks=common.tasks,
        demand=TopicTail(kafka, DEMAND, client_id=f"{replica_id}-demand"),
        watches=watches,
        failures=failures,
    )
    return Replica(parts, shutdown_grace_s=settings.shutdown_grace_s), closing


class _Changed:
    """Passes the news of a control state from its thread to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.cuttings: list[Cutting] = []

    def tell(self, _: JobControl) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
            for cutting in self.cuttings:
                self._loop.call_soon_threadsafe(cutting.changed)


def _identity(job_class: str, replica_id: str, settings: ReplicaSettings) -> ReplicaIdentity:
    return ReplicaIdentity(
        replica_id=replica_id,
        pool=settings.pool,
        job_class=job_class,
        batch_items=settings.batch_items,
    )


def _capacity(
    identity: ReplicaIdentity, engine: Engine, producer: LogProducer, database_time: DatabaseTime
) -> CapacityPublisher:
    def concurrency() -> int:
        return engine.concurrency - (engine.headroom if identity.job_class == "bulk" else 0)

    return CapacityPublisher(identity, producer, concurrency, SystemClock(), database_time)


def _consumer(common: _Common, job_class: str) -> BatchConsumer:
    settings, is_online = common.settings, job_class == "interactive"

    def connect(on_assign: Assigned, on_revoke: Assigned) -> LogConsumer:
        return LogConsumer(
            common.kafka,
            group=f"gpu-{settings.pool}-{job_class}",
            topics=[batches_topic(settings.pool, job_class).name],
            client_id=f"{common.replica_id}-{job_class}",
            on_assign=on_assign,
            on_revoke=on_revoke,
        )

    return BatchConsumer(
        connect,
        common.producer,
        in_flight_max=settings.in_flight_calls_max if is_online else settings.in_flight_batches_max,
        commit_interval_s=common.kafka.commit_interval_s,
        clock=common.clock,
        keeps_calls=is_online,
    )


def _bulk_lane(common: _Common, capacity: CapacityPublisher) -> tuple[Lane, Cutting]:
    turns = Turns()
    execution = BatchExecution(
        ExecutionParts(
            engine=common.engine,
            producer=common.producer,
            objects=common.objects,
            wanted=common.wanted,
            capacity=capacity,
            job_class="bulk",
            clock=common.clock,
        ),
        turns,
    )
    log = AttemptLog(common.kafka, common.producer, client_id=common.replica_id)
    isolation = Isolation(
        execution, log, turns, common.one_at_a_time, crashes_max=common.settings.crashes_max
    )
    consumer = _consumer(common, "bulk")
    lane = BulkLane(consumer, capacity, execution, isolation, (common.pool, common.tasks))
    return lane, Cutting(lambda: execution.runs, common.wanted)


async def _watch_bulk(engine: Engine, bulk: CapacityPublisher, silence_s_max: float) -> None:
    await watch_progress(engine, lambda: bulk.ended_count, silence_s_max, SystemClock())


def _online_lane(
    common: _Common, capacity: CapacityPublisher
) -> tuple[Lane, OnlineExecution, ReplyPublisher]:
    loop = asyncio.get_running_loop()
    # A producer of its own: a token waits for no bulk outcome, and for no linger.
    speaking = LogProducer(common.kafka, client_id=f"{common.replica_id}-replies", linger_ms=0)
    common.closing.callback(speaking.close)
    replies = ReplyPublisher(speaking, common.replica_id, loop)

    def on_news(news: CallerNews) -> None:
        if news.aborted or news.permitted or news.leaving:
            loop.call_soon_threadsafe(execution.heard, news)

    callers = Callers(
        common.kafka, client_id=common.replica_id, clock=common.clock, on_news=on_news
    )
    execution = OnlineExecution(
        OnlineParts(
            engine=common.engine,
            producer=common.producer,
            replies=replies,
            objects=common.objects,
            callers=callers,
            controls=common.controls,
            capacity=capacity,
            pool=common.pool,
            tasks=common.tasks,
            suspects=SuspectCalls(
                AttemptLog(common.kafka, common.producer, client_id=f"{common.replica_id}-calls"),
                common.one_at_a_time,
                crashes_max=common.settings.crashes_max,
            ),
            clock=common.clock,
        )
    )
    callers.start(_START_S_MAX)
    common.closing.callback(callers.stop)
    return OnlineLane(_consumer(common, "interactive"), capacity, execution), execution, replies
