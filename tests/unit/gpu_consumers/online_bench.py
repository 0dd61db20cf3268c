"""Online execution with an engine, a log and callers that a test holds in its hands."""

import asyncio
from collections.abc import Callable
from typing import cast
from uuid import UUID, uuid4

from msgspec.structs import replace

from core.clock import SystemClock
from core.errors import EngineDeadError, PoolUnavailableError
from core.supervised_tasks import SupervisedTasks
from gpu_consumers.batch_consumer import BatchConsumer
from gpu_consumers.class_workers import OnlineLane
from gpu_consumers.engines.engine import Answer, Emit, Engine, Meter
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher, ReplicaIdentity
from gpu_consumers.flow_control.pool_health import PoolHealth
from gpu_consumers.inflight.delivered_batch import Delivery
from gpu_consumers.inflight.replies import ReplyPublisher
from gpu_consumers.online.call_execution import OnlineExecution, OnlineParts
from gpu_consumers.quarantine.attempt_log import AttemptLog
from gpu_consumers.quarantine.crash_attribution import Trials
from gpu_consumers.quarantine.suspect_calls import SuspectCalls
from storage.objects.object_store import ObjectStore
from tests.unit.gpu_consumers.attempts import Attempts
from topics.clients.producer import LogProducer, OnDelivery
from topics.records.codec import Headers, decode, kind_of
from topics.records.received import Received
from topics.records.records import (
    Batch,
    CallerNews,
    CallRef,
    Chunk,
    Item,
    ItemOutcome,
    JobRef,
    Outcomes,
    Replies,
    Reply,
)
from topics.tail_readers.callers import Callers
from topics.tail_readers.job_controls import JobControls

Serve = Callable[[bytes, Emit | None], Answer]

PLACE = ("batches.p.interactive", 0)


class Log:
    """Takes records and acknowledges them at once, except kinds that a test keeps waiting."""

    def __init__(self) -> None:
        self.keeps_waiting: str | None = None
        self._unacknowledged: list[OnDelivery] = []
        self.replies: list[Reply] = []
        self.questions: list[UUID] = []
        self.outcomes: list[ItemOutcome] = []
        self.bills: list[ItemOutcome] = []  # of connection-bound calls
        self.put_back: list[Chunk] = []

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        partition: int,
        key: bytes | None = None,
        headers: Headers | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        kind = kind_of(headers)
        if kind == "replies":
            record = decode(Replies, value, headers)
            self.replies += record.replies
            self.questions += record.questions
        elif kind == "outcomes":
            said = decode(Outcomes, value, headers)
            is_bill = said.job.call is not None and not said.job.call.durable
            (self.bills if is_bill else self.outcomes).extend(said.items)
        elif kind == "chunk":
            self.put_back.append(decode(Chunk, value, headers))
        if on_delivery is None:
            return
        if kind == self.keeps_waiting:
            self._unacknowledged.append(on_delivery)
        else:
            on_delivery(None)

    def acknowledge(self) -> None:
        """Acknowledge what waits for it."""
        for report in self._unacknowledged:
            report(None)
        self._unacknowledged.clear()

    def pieces(self) -> list[bytes]:
        return [piece for reply in self.replies for piece in reply.pieces]

    def statuses(self) -> list[int]:
        return [reply.end.status_code for reply in self.replies if reply.end is not None]


class HeldEngine:
    """Emits one piece, waits until it is let go, emits another and answers."""

    concurrency, headroom = 8, 2

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.away = self.dead = self.full = False
        self.running = 0
        self.served = 0
        self.answer = Answer(200, b"", input_tokens=3, output_tokens=2)
        self.piece = b"1"

    async def serve(self, endpoint: str, body: bytes, emit: Emit | None, meter: Meter) -> Answer:
        if self.full:
            await self.go.wait()
        meter.began()
        if self.away:
            raise PoolUnavailableError
        if self.dead:
            raise EngineDeadError
        self.served += 1
        self.running += 1
        try:
            if emit is not None:
                emit(self.piece)
                meter.counted = lambda answer: replace(answer, input_tokens=3, output_tokens=7)
            await self.go.wait()
            if emit is not None:
                emit(b"2")
        finally:
            self.running -= 1
        return self.answer


class KnownToTest:
    """Callers and closed jobs, as a test says."""

    def __init__(self) -> None:
        self.gone = self.expired = self.closed = False
        self.patience: float | None = None
        self.alive = True

    def is_gone(self, _job: JobRef, *, since_s: float) -> bool:
        return self.gone or self.expired

    def is_expired(self, _job: JobRef) -> bool:
        return self.expired

    def patience_s(self, _job: JobRef) -> float | None:
        return self.patience

    def is_silent(self, _caller_id: str) -> bool:
        return not self.alive

    def is_dead(self, _caller_id: str, *, since_s: float) -> bool:
        return not self.alive

    def is_closed(self, _job_id: UUID) -> bool:
        return self.closed


class OnlineBench:
    """The execution and everything around it."""

    def __init__(
        self,
        attempts: Attempts | None = None,
        objects: ObjectStore | None = None,
        trials: Trials | None = None,
    ) -> None:
        """`attempts` outlive a replica, as their topic does."""
        loop = asyncio.get_running_loop()
        clock = SystemClock()
        self.attempts = attempts or Attempts()
        self.trials = trials or Trials()
        self.log, self.engine, self.known = Log(), HeldEngine(), KnownToTest()
        producer = cast(LogProducer, self.log)
        identity = ReplicaIdentity(
            replica_id="r1", pool="p", job_class="interactive", batch_items=100
        )
        self.capacity = CapacityPublisher(identity, producer, lambda: 8, clock)
        self.pool = PoolHealth([self.capacity], backoff_s_max=1)
        self.tasks = SupervisedTasks(loop)
        self.execution = OnlineExecution(
            OnlineParts(
                engine=cast(Engine, self.engine),
                producer=producer,
                replies=ReplyPublisher(self.log, "r1", loop),
                objects=cast(ObjectStore, objects),
                callers=cast(Callers, self.known),
                controls=cast(JobControls, self.known),
                capacity=self.capacity,
                pool=self.pool,
                tasks=self.tasks,
                suspects=SuspectCalls(cast(AttemptLog, self.attempts), self.trials, crashes_max=3),
                clock=clock,
            )
        )
        self.lane = OnlineLane(cast(BatchConsumer, None), self.capacity, self.execution)
        self.finished = 0

    def begin(
        self, *chunks: Chunk, may_have_run: bool = False, batch_id: UUID | None = None
    ) -> None:
        def finished() -> None:
            self.finished += 1

        record = Received(*PLACE, 0, None, [], b"", 0)
        batch = Batch(batch_id or uuid4(), "b", [*chunks])
        self.execution.begin(Delivery(record, batch, 1, may_have_run), finished)

    def news(
        self, *, aborted: list[UUID] | None = None, permitted: list[UUID] | None = None
    ) -> None:
        self.execution.heard(CallerNews("c1", 0.0, aborted or [], permitted or []))

    async def settle(self) -> None:
        """Let everything happen that waits for nothing but the loop."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def end(self) -> None:
        await self.tasks.wait_all(5)
        await self.settle()
        if self.tasks.failed.done():
            self.tasks.failed.result()


def call(
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
