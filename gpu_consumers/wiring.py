"""Builds a replica around a started engine: its shared dependencies, and a worker per class."""

import asyncio
import contextlib
import math
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from core.bodies.body_limit_settings import DEFAULT_BODY_LIMITS, BodyLimits
from core.clock import Clock, DatabaseTime, SystemClock
from core.ids import new_uuid
from core.runtime.supervised_tasks import SupervisedTasks
from gpu_consumers.bulk.batch_execution import BatchExecution
from gpu_consumers.bulk.waiting_batches import WaitingBatches
from gpu_consumers.cancellation.liveness import BatchLiveness, CallLiveness, ObsoleteBatchAborter
from gpu_consumers.class_workers import BulkWorker, ClassWorker, OnlineWorker
from gpu_consumers.engine_watchdog import watch_progress
from gpu_consumers.engines.engine import Engine, use_of
from gpu_consumers.flow_control.capacity_publisher import (
    CapacityPublisher,
    PoolHealth,
    ReplicaIdentity,
)
from gpu_consumers.flow_control.replica_state import GpuPlace, Lifecycle, PublishedState
from gpu_consumers.flow_control.warm_model import ANY_VERSION, WarmModel
from gpu_consumers.inflight.replies import ReplyPublisher
from gpu_consumers.online.call_completion import CallCompletion
from gpu_consumers.online.call_execution import CallExecution
from gpu_consumers.online.call_server import CallServer
from gpu_consumers.payloads.bodies import BatchBodies
from gpu_consumers.payloads.engine_bodies import PrepareBody
from gpu_consumers.quarantine.attempt_log import AttemptLog
from gpu_consumers.quarantine.crash_attribution import CrashAttribution
from gpu_consumers.quarantine.host_health import HostHealth
from gpu_consumers.quarantine.locks import SharedExclusiveLock
from gpu_consumers.quarantine.quarantine import Quarantine
from gpu_consumers.quarantine.redelivered_calls import RerunPermissions, SuspectCalls
from gpu_consumers.replica import BackgroundWork, Replica
from gpu_consumers.replica_clients import (
    OnlineClients,
    ReplicaClients,
    classes_of,
    connect_clients,
)
from gpu_consumers.settings import ReplicaSettings
from storage.objects.object_store import ObjectStore
from topics.records.records import CallerHeartbeat, JobControl
from topics.settings import KafkaSettings
from topics.tail_readers.job_controls import JobControlReader

_CONTROLS_CHECK_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _SharedDeps:
    """The dependencies that the classes of a replica share."""

    settings: ReplicaSettings
    kafka: KafkaSettings
    engine: Engine
    prepare_body: PrepareBody | None
    body_limits: BodyLimits
    objects: ObjectStore
    replica_id: str
    clock: Clock
    clients: ReplicaClients
    tasks: SupervisedTasks
    attribution: CrashAttribution
    pool: PoolHealth
    served: WarmModel
    state: PublishedState


def new_replica_id(settings: ReplicaSettings) -> str:
    """Return the id of a new process: the platform's, or a random one."""
    if settings.replica_id is not None:
        return settings.replica_id
    return f"{settings.pool}-{socket.gethostname()}-{new_uuid().hex[:8]}"


def new_replica_state(settings: ReplicaSettings) -> PublishedState:
    """Return the state of a replica that starts, on the GPU that its settings name."""
    place = GpuPlace(gpu_type=settings.type, zone=settings.zone, is_spot=settings.spot)
    return PublishedState(place=place, lifecycle=Lifecycle.STARTING)


def _state_of(state: PublishedState, engine: Engine) -> PublishedState:
    state.engine_use = partial(use_of, engine)
    return state


def build_replica(  # noqa: PLR0913  one argument for each part of the process
    settings: ReplicaSettings,
    kafka: KafkaSettings,
    engine: Engine,
    objects: ObjectStore,
    *,
    prepare_body: PrepareBody | None = None,
    body_limits: BodyLimits = DEFAULT_BODY_LIMITS,
    silence_s_max: float = math.inf,
    host: HostHealth | None = None,
    served: WarmModel = ANY_VERSION,
    replica_id: str | None = None,
    state: PublishedState | None = None,
    clients: ReplicaClients | None = None,
) -> tuple[Replica, contextlib.ExitStack]:
    """Build a replica on the running event loop; the stack closes its dependencies.

    `prepare_body` is applied to each body for the engine; None leaves it unchanged. The replica
    fails when bulk items run and none ends for `silence_s_max`. Without `host` it counts as
    proven. `served` is the loaded model, `replica_id` and `state` were published meanwhile, and
    `clients` are of that id; None: they are connected now, which blocks the loop.
    """
    loop = asyncio.get_running_loop()
    state = _state_of(state or new_replica_state(settings), engine)
    replica_id = replica_id or new_replica_id(settings)
    clock = SystemClock()
    if clients is None:
        clients = connect_clients(settings, kafka, replica_id=replica_id, clock=clock)
    control_changed = asyncio.Event()

    def on_control(_: JobControl) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(control_changed.set)

    clients.listeners.on_control = on_control
    database_time, attribution = DatabaseTime(max), CrashAttribution(host=host)
    capacities = {
        job_class: CapacityPublisher(
            _identity(settings, replica_id, job_class, served),
            clients.producer,
            partial(_concurrency, engine, job_class),
            clock,
            database_time=database_time,
            has_suspects=attribution.has_suspects,
            state=state,
        )
        for job_class in classes_of(settings)
    }
    attribution.on_suspects_changed += [capacity.publish_soon for capacity in capacities.values()]
    shared = _SharedDeps(
        settings=settings,
        kafka=kafka,
        engine=engine,
        prepare_body=prepare_body,
        body_limits=body_limits,
        objects=objects,
        replica_id=replica_id,
        clock=clock,
        clients=clients,
        tasks=SupervisedTasks(loop),
        attribution=attribution,
        pool=PoolHealth([*capacities.values()], backoff_s_max=settings.unavailable_backoff_s_max),
        served=served,
        state=state,
    )
    liveness = BatchLiveness(clients.controls, database_time, clock)
    replica = _replica(shared, capacities, liveness, control_changed, silence_s_max)
    return replica, clients.closing


def _identity(
    settings: ReplicaSettings, replica_id: str, job_class: str, served: WarmModel
) -> ReplicaIdentity:
    return ReplicaIdentity(
        replica_id=replica_id,
        pool=settings.pool,
        job_class=job_class,
        batch_items=settings.batch_items,
        served=served,
    )


def _replica(
    shared: _SharedDeps,
    capacities: Mapping[str, CapacityPublisher],
    liveness: BatchLiveness,
    control_changed: asyncio.Event,
    silence_s_max: float,
) -> Replica:
    """Build the worker of each class, with the background work that belongs to it."""
    workers: list[ClassWorker] = []
    background: list[BackgroundWork] = [partial(_check_controls, shared.clients.controls)]
    failures = []
    if bulk := capacities.get("bulk"):
        worker = _bulk_worker(shared, bulk, liveness)
        workers.append(worker)
        aborter = ObsoleteBatchAborter(lambda: worker.execution.runs, liveness, control_changed)
        watch = partial(
            watch_progress, shared.engine, lambda: bulk.ended_count, silence_s_max, shared.clock
        )
        background += [aborter.run, worker.publish_early, worker.delete_attempts, watch]
    if online := capacities.get("interactive"):
        assert shared.clients.online is not None
        online_worker, replies = _online_worker(shared, online, shared.clients.online)
        workers.append(online_worker)
        background.append(online_worker.execution.abort_obsolete_calls)
        failures.append(replies.failed)
    return Replica(
        workers=workers,
        pool=shared.pool,
        tasks=shared.tasks,
        demand=shared.clients.demand,
        background=background,
        failures=failures,
        shutdown_grace_s=shared.settings.shutdown_grace_s,
        state=shared.state,
        clock=shared.clock,
    )


def _bulk_worker(
    shared: _SharedDeps, capacity: CapacityPublisher, liveness: BatchLiveness
) -> BulkWorker:
    """Return the worker of class bulk, whose consumer joins its group when it runs."""
    lock = SharedExclusiveLock()
    execution = BatchExecution(
        engine=shared.engine,
        producer=shared.clients.producer,
        bodies=BatchBodies(shared.objects, shared.clock, shared.body_limits),
        prepare_body=shared.prepare_body,
        liveness=liveness,
        capacity=capacity,
        lock=lock,
        attribution=shared.attribution,
        served=shared.served,
        clock=shared.clock,
    )
    log = AttemptLog(
        shared.kafka,
        shared.clients.producer,
        client_id=shared.replica_id,
        running=shared.attribution.host.running,
    )
    crashes_max = shared.settings.crashes_max
    consumer = shared.clients.consumers["bulk"]
    return BulkWorker(
        consumer=consumer,
        capacity=capacity,
        execution=execution,
        quarantine=Quarantine(execution, log, lock, shared.attribution, crashes_max=crashes_max),
        waiting=WaitingBatches(
            producer=shared.clients.producer, consumer=consumer, tasks=shared.tasks
        ),
        pool=shared.pool,
        tasks=shared.tasks,
        clock=shared.clock,
    )


def _online_worker(
    shared: _SharedDeps, capacity: CapacityPublisher, clients: OnlineClients
) -> tuple[OnlineWorker, ReplyPublisher]:
    """Return the worker of class interactive, and the publisher that fails when it loses a reply.

    The consumer joins its group later, when it runs.
    """
    replies = ReplyPublisher(clients.replies, shared.replica_id, asyncio.get_running_loop())

    def on_caller_record(record: CallerHeartbeat) -> None:
        if record.aborted or record.permitted or record.leaving:
            shared.tasks.call_from_thread(execution.apply_caller_record, record)

    suspects = SuspectCalls(
        AttemptLog(
            shared.kafka,
            shared.clients.producer,
            client_id=f"{shared.replica_id}-calls",
            running=shared.attribution.host.running,
        ),
        shared.attribution,
        crashes_max=shared.settings.crashes_max,
    )
    execution = CallExecution(
        server=CallServer(
            shared.engine,
            shared.objects,
            shared.pool,
            shared.clock,
            prepare_body=shared.prepare_body,
            limits=shared.body_limits,
            engine_hash=shared.served.engine,
        ),
        completion=CallCompletion(
            shared.clients.producer, shared.objects, shared.pool, shared.served.engine
        ),
        replies=replies,
        permissions=RerunPermissions(replies.request_permission),
        liveness=CallLiveness(clients.callers, shared.clients.controls, shared.clock),
        capacity=capacity,
        pool=shared.pool,
        suspects=suspects,
        clock=shared.clock,
        served=shared.served,
    )
    shared.clients.listeners.on_caller = on_caller_record
    worker = OnlineWorker(
        consumer=shared.clients.consumers["interactive"],
        capacity=capacity,
        execution=execution,
        suspects=suspects,
        tasks=shared.tasks,
    )
    return worker, replies


def _concurrency(engine: Engine, job_class: str) -> int:
    return engine.bulk_concurrency if job_class == "bulk" else engine.concurrency


async def _check_controls(controls: JobControlReader) -> None:
    """Raise the failure of the reader of control records, before a batch needs its state."""
    while True:
        controls.raise_failure()
        await asyncio.sleep(_CONTROLS_CHECK_S)
