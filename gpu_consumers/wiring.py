"""Builds a replica around a started engine: its shared dependencies, and a worker per class."""

import asyncio
import contextlib
import math
import socket
from collections.abc import Mapping
from functools import partial
from typing import Final

from core.clock import SystemClock
from core.database_time import DatabaseTime
from core.ids import new_uuid
from core.supervised_tasks import SupervisedTasks
from gpu_consumers.cancellation.liveness import BatchLiveness, ObsoleteBatchAborter
from gpu_consumers.class_wiring import (
    START_S_MAX,
    SharedDeps,
    build_bulk_worker,
    build_online_worker,
)
from gpu_consumers.class_workers import ClassWorker
from gpu_consumers.engine_watchdog import watch_progress
from gpu_consumers.engines.engine import Engine
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher, ReplicaIdentity
from gpu_consumers.flow_control.pool_health import PoolHealth
from gpu_consumers.quarantine.crash_attribution import CrashAttribution
from gpu_consumers.replica import BackgroundWork, Replica
from gpu_consumers.settings import ReplicaSettings
from storage.objects.object_store import ObjectStore
from topics.clients.producer import RecordProducer
from topics.records.catalogue import DEMAND, JOB_CLASSES
from topics.records.records import JobControl
from topics.settings import KafkaSettings
from topics.tail_readers.job_controls import JobControlReader
from topics.tail_readers.topic_tail_reader import TopicTailReader

_CONTROLS_CHECK_S: Final = 1.0


def engine_settings_for(settings: ReplicaSettings, engine: EngineSettings) -> EngineSettings:
    """Return the engine's settings for this replica: without online calls, no headroom."""
    if settings.job_class == "bulk":
        return engine.model_copy(update={"interactive_headroom": 0})
    return engine


def build_replica(
    settings: ReplicaSettings,
    kafka: KafkaSettings,
    engine: Engine,
    objects: ObjectStore,
    *,
    silence_s_max: float = math.inf,
) -> tuple[Replica, contextlib.ExitStack]:
    """Build a replica on the running event loop; the stack closes its dependencies.

    The replica fails when the engine runs bulk items and ends none of them for `silence_s_max`.
    """
    replica_id = f"{settings.pool}-{socket.gethostname()}-{new_uuid().hex[:8]}"
    clock = SystemClock()
    closing = contextlib.ExitStack()
    producer = RecordProducer(kafka, client_id=replica_id, linger_ms=1.0)
    closing.callback(producer.close)
    database_time = DatabaseTime(max)
    control_changes = _ControlChanges(asyncio.get_running_loop())
    controls = JobControlReader(
        kafka, client_id=replica_id, clock=clock, on_change=control_changes.on_change
    )
    controls.start(START_S_MAX)
    closing.callback(controls.stop)
    classes = JOB_CLASSES if settings.job_class == "both" else (settings.job_class,)
    attribution = CrashAttribution()
    capacities = {
        job_class: CapacityPublisher(
            ReplicaIdentity(
                replica_id=replica_id,
                pool=settings.pool,
                job_class=job_class,
                batch_items=settings.batch_items,
            ),
            producer,
            partial(_concurrency, engine, job_class),
            clock,
            database_time=database_time,
            has_suspects=attribution.has_suspects,
        )
        for job_class in classes
    }
    attribution.on_suspects_changed += [capacity.publish_soon for capacity in capacities.values()]
    shared = SharedDeps(
        settings=settings,
        kafka=kafka,
        engine=engine,
        replica_id=replica_id,
        producer=producer,
        objects=objects,
        controls=controls,
        liveness=BatchLiveness(controls, database_time, clock),
        pool=PoolHealth([*capacities.values()], backoff_s_max=settings.unavailable_backoff_s_max),
        tasks=SupervisedTasks(asyncio.get_running_loop()),
        attribution=attribution,
        clock=clock,
        closing=closing,
    )
    return _replica(shared, capacities, control_changes, silence_s_max), closing


def _replica(
    shared: SharedDeps,
    capacities: Mapping[str, CapacityPublisher],
    control_changes: "_ControlChanges",
    silence_s_max: float,
) -> Replica:
    """Build the worker of each class, with the background work that belongs to it."""
    workers: list[ClassWorker] = []
    background: list[BackgroundWork] = [partial(_check_controls, shared.controls)]
    failures = []
    if bulk := capacities.get("bulk"):
        worker = build_bulk_worker(shared, bulk)
        aborter = ObsoleteBatchAborter(lambda: worker.execution.runs, shared.liveness)
        control_changes.aborter = aborter
        workers.append(worker)
        watch = partial(
            watch_progress, shared.engine, lambda: bulk.ended_count, silence_s_max, shared.clock
        )
        background += [aborter.run, worker.delete_attempts, watch]
    if online := capacities.get("interactive"):
        online_worker, replies = build_online_worker(shared, online)
        workers.append(online_worker)
        background.append(online_worker.execution.abort_obsolete_calls)
        failures.append(replies.failed)
    client_id = f"{shared.replica_id}-demand"
    return Replica(
        workers=workers,
        pool=shared.pool,
        tasks=shared.tasks,
        demand=TopicTailReader(shared.kafka, DEMAND, client_id=client_id, reset_to_earliest=False),
        background=background,
        failures=failures,
        shutdown_grace_s=shared.settings.shutdown_grace_s,
    )


class _ControlChanges:
    """Passes control records from the thread of their reader to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.aborter: ObsoleteBatchAborter | None = None

    def on_change(self, _: JobControl) -> None:
        if self.aborter is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self._loop.call_soon_threadsafe(self.aborter.check_soon)


def _concurrency(engine: Engine, job_class: str) -> int:
    return engine.concurrency - (engine.headroom if job_class == "bulk" else 0)


async def _check_controls(controls: JobControlReader) -> None:
    """Raise the failure of the reader of control records, before a batch needs its state."""
    while True:
        controls.raise_failure()
        await asyncio.sleep(_CONTROLS_CHECK_S)
