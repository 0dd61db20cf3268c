"""Wires a replica around a started engine: what its lanes share, and one lane for each class."""

import asyncio
import contextlib
import math
import socket
from functools import partial
from typing import Final

from core.clock import SystemClock
from core.database_time import DatabaseTime
from core.ids import new_uuid
from core.supervised_tasks import SupervisedTasks
from gpu_consumers.cancellation.cutting import Cutting
from gpu_consumers.cancellation.wanted import Wanted
from gpu_consumers.class_wiring import START_S_MAX, SharedParts, wire_bulk_lane, wire_online_lane
from gpu_consumers.class_workers import Lane
from gpu_consumers.engine_watchdog import watch_progress
from gpu_consumers.engines.engine import Engine
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher, ReplicaIdentity
from gpu_consumers.flow_control.pool_health import PoolHealth
from gpu_consumers.quarantine.crash_attribution import Trials
from gpu_consumers.replica import Replica, ReplicaParts, Watch
from gpu_consumers.settings import ReplicaSettings
from storage.objects.object_store import ObjectStore
from topics.clients.producer import LogProducer
from topics.records.catalogue import DEMAND, JOB_CLASSES
from topics.records.records import JobControl
from topics.settings import KafkaSettings
from topics.tail_readers.job_controls import JobControls
from topics.tail_readers.topic_tail import TopicTail

_NEWS_LOOK_S: Final = 1.0


def engine_for(settings: ReplicaSettings, engine: EngineSettings) -> EngineSettings:
    """Return the engine's settings here; without online calls nothing is kept free for them."""
    if settings.job_class == "bulk":
        return engine.model_copy(update={"interactive_headroom": 0})
    return engine


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
    controls = JobControls(kafka, client_id=replica_id, clock=clock, on_change=changed.tell)
    controls.start(START_S_MAX)
    closing.callback(controls.stop)
    classes = JOB_CLASSES if settings.job_class == "both" else (settings.job_class,)
    trials = Trials()
    capacities = {
        name: _capacity(
            _identity(name, replica_id, settings), engine, producer, database_time, trials
        )
        for name in classes
    }
    trials.on_danger += [capacity.changed for capacity in capacities.values()]
    shared = SharedParts(
        settings=settings,
        kafka=kafka,
        engine=engine,
        replica_id=replica_id,
        producer=producer,
        objects=objects,
        controls=controls,
        wanted=Wanted(controls, database_time, clock),
        pool=PoolHealth([*capacities.values()], backoff_s_max=settings.unavailable_backoff_s_max),
        tasks=SupervisedTasks(asyncio.get_running_loop()),
        trials=trials,
        clock=clock,
        closing=closing,
    )
    lanes: list[Lane] = []
    watches: list[Watch] = [partial(_watch_news, controls)]
    failures = []
    if bulk := capacities.get("bulk"):
        lane, cutting = wire_bulk_lane(shared, bulk)
        lanes.append(lane)
        changed.cuttings.append(cutting)
        watches.append(cutting.watch)
        watches.append(lane.watch)
        watches.append(partial(_watch_bulk, engine, bulk, silence_s_max))
    if online := capacities.get("interactive"):
        online_lane, execution, replies = wire_online_lane(shared, online)
        lanes.append(online_lane)
        watches.append(execution.watch)
        failures.append(replies.failed)
    parts = ReplicaParts(
        lanes=lanes,
        pool=shared.pool,
        tasks=shared.tasks,
        demand=TopicTail(kafka, DEMAND, client_id=f"{replica_id}-demand", past_counts=False),
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
    identity: ReplicaIdentity,
    engine: Engine,
    producer: LogProducer,
    database_time: DatabaseTime,
    trials: Trials,
) -> CapacityPublisher:
    def concurrency() -> int:
        return engine.concurrency - (engine.headroom if identity.job_class == "bulk" else 0)

    return CapacityPublisher(
        identity,
        producer,
        concurrency,
        SystemClock(),
        database_time=database_time,
        in_danger=trials.in_danger,
    )


async def _watch_news(controls: JobControls) -> None:
    """End with the news of jobs, before a batch comes that would need them."""
    while True:
        controls.check()
        await asyncio.sleep(_NEWS_LOOK_S)


async def _watch_bulk(engine: Engine, bulk: CapacityPublisher, silence_s_max: float) -> None:
    await watch_progress(engine, lambda: bulk.ended_count, silence_s_max, SystemClock())
