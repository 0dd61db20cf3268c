"""The online worker of a replica, with fakes around it."""

import asyncio
from typing import cast
from uuid import UUID, uuid4

from core.clock import SystemClock
from core.supervised_tasks import SupervisedTasks
from gpu_consumers.batch_consumer import BatchConsumer
from gpu_consumers.cancellation.liveness import CallLiveness
from gpu_consumers.class_workers import OnlineWorker
from gpu_consumers.engines.engine import Engine
from gpu_consumers.flow_control.capacity_publisher import (
    CapacityPublisher,
    PoolHealth,
    ReplicaIdentity,
)
from gpu_consumers.inflight.batch_run import DeliveredBatch
from gpu_consumers.inflight.replies import ReplyPublisher
from gpu_consumers.online.call_completion import CallCompletion
from gpu_consumers.online.call_execution import CallExecution
from gpu_consumers.online.call_server import CallServer
from gpu_consumers.quarantine.attempt_log import AttemptLog
from gpu_consumers.quarantine.crash_attribution import CrashAttribution
from gpu_consumers.quarantine.redelivered_calls import RerunPermissions, SuspectCalls
from storage.objects.object_store import ObjectStore
from tests.unit.gpu_consumers.fakes import (
    FakeConsumer,
    GatedEngine,
    MemoryAttemptLog,
    RecordingProducer,
    run_loop,
)
from topics.clients.producer import RecordProducer
from topics.records.received_record import ReceivedRecord
from topics.records.records import Batch, CallerHeartbeat, CallRef, Chunk, Item, JobRef
from topics.tail_readers.caller_heartbeats import CallerHeartbeatReader
from topics.tail_readers.job_controls import JobControlReader

PARTITION = ("batches.p.interactive", 0)


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
            server=CallServer(cast(Engine, self.engine), store, self.pool, clock),
            completion=CallCompletion(producer, store, self.pool),
            replies=replies,
            permissions=RerunPermissions(replies.request_permission),
            liveness=CallLiveness(callers, controls, clock),
            capacity=self.capacity,
            pool=self.pool,
            suspects=suspects,
            clock=clock,
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
        record = ReceivedRecord(*PARTITION, 0, None, [], b"", 0)
        batch = Batch(batch_id or uuid4(), "b", [*chunks])
        self.worker.start_batch(DeliveredBatch(record, batch, 1, is_redelivered))

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
    job = JobRef(
        job_id=UUID(int=number),
        day=20000,
        tenant_id=UUID(int=5),
        model="m",
        model_version="1",
        pool="p",
        endpoint="/v1/chat/completions",
        input_key="",
        deadline_s=0,
        call=CallRef("c1", 3, stream=stream, durable=durable, begin_by_s=begin_by_s),
    )
    return Chunk(job, [Item(0, "", b"{}", 1)], waited_s=0.25)
