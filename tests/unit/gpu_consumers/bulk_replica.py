"""The bulk worker of a replica, with fakes around it."""

import asyncio
from typing import cast
from uuid import UUID, uuid4

from core.clock import SystemClock
from core.database_time import DatabaseTime
from core.states import CloseReason
from core.supervised_tasks import SupervisedTasks
from gpu_consumers.batch_consumer import BatchConsumer
from gpu_consumers.bulk.batch_execution import BatchExecution
from gpu_consumers.cancellation.liveness import BatchLiveness
from gpu_consumers.class_workers import BulkWorker
from gpu_consumers.engines.engine import Engine
from gpu_consumers.flow_control.capacity_publisher import (
    CapacityPublisher,
    PoolHealth,
    ReplicaIdentity,
)
from gpu_consumers.inflight.batch_run import DeliveredBatch
from gpu_consumers.payloads.bodies import BatchBodies
from gpu_consumers.quarantine.attempt_log import AttemptLog
from gpu_consumers.quarantine.crash_attribution import CrashAttribution
from gpu_consumers.quarantine.locks import SharedExclusiveLock
from gpu_consumers.quarantine.quarantine import Quarantine
from storage.objects.object_store import ObjectStore
from tests.unit.gpu_consumers.fakes import (
    FakeConsumer,
    FaultyEngine,
    MemoryAttemptLog,
    RecordingProducer,
)
from topics.clients.producer import RecordProducer
from topics.records.received_record import ReceivedRecord
from topics.records.records import Batch, Chunk, Item, JobControl, JobRef
from topics.tail_readers.job_controls import JobControlReader

CRASHES_MAX = 3
PARTITION = ("batches.p.bulk", 0)


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
    ) -> None:
        self.log, self.attempts = log or RecordingProducer(), attempts or MemoryAttemptLog()
        self.engine = engine or FaultyEngine()
        self.controls, self.consumer = FakeJobControls(), FakeConsumer()
        self.time = DatabaseTime(max)
        self.tasks = SupervisedTasks(asyncio.get_running_loop())
        clock, producer = SystemClock(), cast(RecordProducer, self.log)
        lock, self.attribution = SharedExclusiveLock(), attribution or CrashAttribution()
        self.capacity = CapacityPublisher(
            ReplicaIdentity(replica_id="r", pool="p", job_class="bulk", batch_items=100),
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
            liveness=BatchLiveness(cast(JobControlReader, self.controls), self.time, clock),
            capacity=self.capacity,
            lock=lock,
            attribution=self.attribution,
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
    record = ReceivedRecord(*PARTITION, offset, None, [], b"", 0)
    return DeliveredBatch(record, batch, 1, is_redelivered)


def batch_of(*bodies: bytes, job_number: int = 1) -> Batch:
    job = JobRef(
        job_id=UUID(int=job_number),
        day=20000,
        tenant_id=UUID(int=5),
        model="m",
        model_version="1",
        pool="p",
        endpoint="/v1/chat/completions",
        input_key="files/in",
        deadline_s=0,
    )
    items = [Item(index, f"c{index}", body, 1) for index, body in enumerate(bodies)]
    return Batch(uuid4(), "b", [Chunk(job, items)])
