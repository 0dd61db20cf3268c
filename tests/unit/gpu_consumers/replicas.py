"""The workers of a replica, with fakes around them."""

import asyncio
from typing import cast
from uuid import UUID, uuid4

from core.clock import Clock, DatabaseTime, SystemClock
from core.runtime.supervised_tasks import SupervisedTasks
from core.states import CloseReason
from gpu_consumers.batch_consumer import BatchConsumer
from gpu_consumers.bulk.batch_execution import BatchExecution
from gpu_consumers.bulk.waiting_batches import WaitingBatches
from gpu_consumers.cancellation.liveness import BatchLiveness, CallLiveness
from gpu_consumers.class_workers import BulkWorker, OnlineWorker
from gpu_consumers.engines.engine import Engine
from gpu_consumers.flow_control.capacity_publisher import (
    CapacityPublisher,
    PoolHealth,
    ReplicaIdentity,
)
from gpu_consumers.flow_control.warm_model import ANY_VERSION, WarmModel
from gpu_consumers.inflight.batch_run import DeliveredBatch
from gpu_consumers.inflight.replies import ReplyPublisher
from gpu_consumers.online.call_completion import CallCompletion
from gpu_consumers.online.call_execution import CallExecution
from gpu_consumers.online.call_server import CallServer
from gpu_consumers.payloads.bodies import BatchBodies
from gpu_consumers.quarantine.attempt_log import AttemptLog
from gpu_consumers.quarantine.crash_attribution import CrashAttribution
from gpu_consumers.quarantine.host_health import HostHealth
from gpu_consumers.quarantine.locks import SharedExclusiveLock
from gpu_consumers.quarantine.quarantine import Quarantine
from gpu_consumers.quarantine.redelivered_calls import RerunPermissions, SuspectCalls
from storage.objects.object_store import ObjectStore
from tests.unit.gpu_consumers.fakes import (
    FakeConsumer,
    FaultyEngine,
    GatedEngine,
    MemoryAttemptLog,
    RecordingProducer,
    run_loop,
)
from topics.clients.producer import RecordProducer
from topics.records.codec import kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Batch, CallerHeartbeat, CallRef, Chunk, Item, JobControl, JobRef
from topics.tail_readers.caller_liveness import CallerHeartbeatReader
from topics.tail_readers.job_controls import JobControlReader

CRASHES_MAX = 3
PARTITION = ("batches.p.any", 0)


class FakeJobControls:
    """The control state of jobs, set by a test."""

    def __init__(self) -> None:
        self.closed_ids: set[UUID] = set()
        self.by_job: dict[UUID, JobControl] = {}
        self.failure: Exception | None = None  # of the tail reader

    def newer_control(self, job: JobRef) -> JobControl | None:
        if self.failure is not None:
            raise self.failure
        if job.job_id in self.closed_ids:
            return JobControl(job.job_id, 9, closed=CloseReason.CANCELLED)
        return self.by_job.get(job.job_id)


class BulkReplica:
    """A process of a replica; `log` and `attempts` outlive it and go to the next one."""

    def __init__(
        self,
        log: RecordingProducer | None = None,
        attempts: MemoryAttemptLog | None = None,
        engine: FaultyEngine | None = None,
        objects: ObjectStore | None = None,
        *,
        suspect_delay_s: float = 0,
        attribution: CrashAttribution | None = None,
        clock: Clock | None = None,
        host: HostHealth | None = None,
        served: WarmModel = ANY_VERSION,
    ) -> None:
        self.log, self.attempts = log or RecordingProducer(), attempts or MemoryAttemptLog()
        self.engine = engine or FaultyEngine()
        self.controls, self.consumer = FakeJobControls(), FakeConsumer()
        self.time = DatabaseTime(max)
        self.tasks = SupervisedTasks(asyncio.get_running_loop())
        clock, producer = clock or SystemClock(), cast(RecordProducer, self.log)
        lock = SharedExclusiveLock()
        self.attribution = attribution or CrashAttribution(host=host or HostHealth(host_id="h"))
        self.attribution.host.start_serving(self.engine.concurrency)
        self.capacity = CapacityPublisher(
            ReplicaIdentity(
                replica_id="r", pool="p", job_class="bulk", batch_items=100, served=served
            ),
            producer,
            lambda: 64,
            clock,
            has_suspects=self.attribution.has_suspects,
        )
        self.attribution.on_suspects_changed.append(self.capacity.publish_soon)
        self.execution = BatchExecution(
            engine=cast(Engine, self.engine),
            producer=producer,
            bodies=BatchBodies(cast(ObjectStore, objects), clock),
            prepare_body=None,
            liveness=BatchLiveness(cast(JobControlReader, self.controls), self.time, clock),
            capacity=self.capacity,
            lock=lock,
            attribution=self.attribution,
            served=served,
        )
        self.quarantine = Quarantine(
            self.execution,
            cast(AttemptLog, self.attempts),
            lock,
            self.attribution,
            crashes_max=CRASHES_MAX,
            suspect_delay_s=suspect_delay_s,
        )
        self.worker = BulkWorker(
            consumer=cast(BatchConsumer, self.consumer),
            capacity=self.capacity,
            execution=self.execution,
            quarantine=self.quarantine,
            waiting=WaitingBatches(
                producer=producer, consumer=cast(BatchConsumer, self.consumer), tasks=self.tasks
            ),
            pool=PoolHealth([self.capacity], backoff_s_max=1),
            tasks=self.tasks,
            clock=clock,
        )

    def start_batch(
        self, batch: Batch, *, is_redelivered: bool = False, offset: int = 0
    ) -> DeliveredBatch:
        delivered = delivered_batch(batch, is_redelivered=is_redelivered, offset=offset)
        self.worker.start_batch(delivered)
        return delivered

    async def wait_ended(self) -> BaseException | None:
        """Wait until no batch runs; return the failure that ended the process, if one did."""
        running = [run.task for run in self.execution.runs if run.task is not None]
        if running:
            await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
        self.tasks.cancel_all()
        await self.tasks.wait_all(5)
        return self.tasks.failed.exception() if self.tasks.failed.done() else None


def delivered_batch(
    batch: Batch, *, is_redelivered: bool = False, offset: int = 0
) -> DeliveredBatch:
    record = ReceivedRecord(*PARTITION, offset, None, kind_headers(Batch), b"", 0)
    return DeliveredBatch(record, batch, 1, is_redelivered)


def job_ref(number: int, call: CallRef | None = None) -> JobRef:
    return JobRef(
        job_id=UUID(int=number),
        day=20000,
        tenant_id=UUID(int=5),
        model="m",
        model_version="1",
        pool="p",
        endpoint="/v1/chat/completions",
        input_key="files/in" if call is None else "",
        deadline_s=0,
        call=call,
    )


def batch_of(*bodies: bytes, job_number: int = 1) -> Batch:
    job = job_ref(job_number)
    items = [Item(index, f"c{index}", body, 1) for index, body in enumerate(bodies)]
    return Batch(uuid4(), "b", [Chunk(job, items)])


class FakeCallers:
    """The state of every caller and job, set by a test."""

    def __init__(self) -> None:
        self.gone = self.expired = self.closed = False
        self.patience: float | None = None
        self.alive = True

    def is_abandoned(self, _job: JobRef, *, since_s: float) -> bool:
        return self.gone or self.expired

    def is_expired(self, _job: JobRef) -> bool:
        return self.expired

    def start_wait_left_s(self, _job: JobRef) -> float | None:
        return self.patience

    def is_silent(self, _caller_id: str) -> bool:
        return not self.alive

    def is_dead(self, _caller_id: str, *, since_s: float) -> bool:
        return not self.alive

    def is_closed(self, _job_id: UUID) -> bool:
        return self.closed


class OnlineReplica:
    """A process of a replica; `attempts` outlive it and go to the next one."""

    def __init__(
        self,
        attempts: MemoryAttemptLog | None = None,
        objects: ObjectStore | None = None,
        attribution: CrashAttribution | None = None,
        served: WarmModel = ANY_VERSION,
    ) -> None:
        loop, clock = asyncio.get_running_loop(), SystemClock()
        self.attempts = attempts or MemoryAttemptLog()
        self.attribution = attribution or CrashAttribution()
        self.log, self.engine, self.callers = RecordingProducer(), GatedEngine(), FakeCallers()
        self.consumer = FakeConsumer()
        producer, store = cast(RecordProducer, self.log), cast(ObjectStore, objects)
        identity = ReplicaIdentity(
            replica_id="r1", pool="p", job_class="interactive", batch_items=100
        )
        self.capacity = CapacityPublisher(identity, producer, lambda: 8, clock)
        self.pool = PoolHealth([self.capacity], backoff_s_max=1)
        self.tasks = SupervisedTasks(loop)
        attempt_log = cast(AttemptLog, self.attempts)
        suspects = SuspectCalls(attempt_log, self.attribution, crashes_max=3)
        callers, controls = (
            cast(CallerHeartbeatReader, self.callers),
            cast(JobControlReader, self.callers),
        )
        replies = ReplyPublisher(self.log, "r1", loop)
        self.execution = CallExecution(
            server=CallServer(
                cast(Engine, self.engine), store, self.pool, clock, prepare_body=None
            ),
            completion=CallCompletion(producer, store, self.pool, served.engine),
            replies=replies,
            permissions=RerunPermissions(replies.request_permission),
            liveness=CallLiveness(callers, controls, clock),
            capacity=self.capacity,
            pool=self.pool,
            suspects=suspects,
            clock=clock,
            served=served,
        )
        self.worker = OnlineWorker(
            consumer=cast(BatchConsumer, self.consumer),
            capacity=self.capacity,
            execution=self.execution,
            suspects=suspects,
            tasks=self.tasks,
        )

    @property
    def finished_count(self) -> int:
        """Batches that were reported to the consumer."""
        return len(self.consumer.offsets)

    def start_batch(
        self, *chunks: Chunk, is_redelivered: bool = False, batch_id: UUID | None = None
    ) -> None:
        batch = Batch(batch_id or uuid4(), "b", [*chunks])
        self.worker.start_batch(delivered_batch(batch, is_redelivered=is_redelivered))

    async def hold(self, *chunks: Chunk, is_redelivered: bool = False) -> None:
        """Start calls; return when they run, or when nothing more happens."""
        self.start_batch(*chunks, is_redelivered=is_redelivered)
        await run_loop()

    async def complete(self, *chunks: Chunk, is_redelivered: bool = False) -> None:
        """Run calls, and those that are held, to their end."""
        self.engine.gate.set()
        self.start_batch(*chunks, is_redelivered=is_redelivered)
        await self.wait_ended()

    def receive_caller_record(
        self, *, aborted: list[UUID] | None = None, permitted: list[UUID] | None = None
    ) -> None:
        self.execution.apply_caller_record(
            CallerHeartbeat("c1", 0.0, aborted or [], permitted or [])
        )

    async def wait_ended(self) -> None:
        """Wait until no call runs; raise the failure that ended the process, if one did."""
        await self.tasks.wait_all(5)
        await run_loop()
        if self.tasks.failed.done():
            self.tasks.failed.result()


def call_chunk(
    number: int = 1, *, stream: bool = True, durable: bool = False, begin_by_s: float = 0.0
) -> Chunk:
    call = CallRef("c1", 3, stream=stream, durable=durable, begin_by_s=begin_by_s)
    job = job_ref(number, call)
    return Chunk(job, [Item(0, "", b"{}", 1)], waited_s=0.25)
