"""Runs one batch on the engine and makes every item's end durable on the log.

1. Skip items of closed jobs. 2. Execute. 3. Publish outcomes, one record stream per job; what the
pool could not answer goes back to its requests. 4. Report the batch finished, only when every
record is acknowledged. The order is the guarantee (DESIGN, rule 1 of delivery).
"""

import asyncio
import logging
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from core.clock import Clock
from core.errors import PoolUnavailableError
from core.outcomes import Outcome
from gpu_consumers import metrics
from gpu_consumers.bodies import ANSWER_BYTES_MAX, load_body, store_body
from gpu_consumers.capacity import CapacityPublisher
from gpu_consumers.engines.engine import Answer, Engine
from gpu_consumers.publishing import send_back, send_outcomes
from storage.errors import ObjectMissingError
from storage.objects import ObjectStore
from topics.control import ClosedJobs
from topics.producer import LogProducer
from topics.records import Batch, Chunk, Item, ItemOutcome, JobRef

_LOG = logging.getLogger(__name__)
_FIRST_ERROR_STATUS = 400


@dataclass(slots=True)
class _Run:
    """One batch in execution: what was asked and what has been answered."""

    batch: Batch
    items: list[tuple[JobRef, Item]]
    answers: dict[int, Answer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionParts:
    """What executing batches needs."""

    engine: Engine
    producer: LogProducer
    objects: ObjectStore
    closed: ClosedJobs
    capacity: CapacityPublisher
    job_class: str
    clock: Clock


class BatchExecution:
    """Executes batches; several at once, each by its own task on the event loop."""

    def __init__(self, parts: ExecutionParts) -> None:
        """Nothing runs yet."""
        self._engine, self._producer, self._objects = parts.engine, parts.producer, parts.objects
        self._closed, self._capacity = parts.closed, parts.capacity
        self._job_class, self._clock = parts.job_class, parts.clock

    async def run(self, batch: Batch) -> bool:
        """Execute `batch`; return when its records are acknowledged, True if the pool answered.

        Cancelling the call hands back what has no answer. Raises EngineDeadError, DeliveryError.
        """
        run = _Run(batch, [pair for part in batch.parts for pair in self._open_items(part)])
        total = sum(len(part.items) for part in batch.parts)
        self._capacity.arrived(batch, total)
        self._capacity.ended(batch, total - len(run.items))
        metrics.BATCH_ITEMS.observe(total)
        began_s = self._clock.monotonic_s()
        answered = True
        try:
            await self._execute(run)
        except PoolUnavailableError:
            answered = False
        except asyncio.CancelledError:
            await self._publish(run)
            raise
        metrics.EXECUTION_SECONDS.observe(self._clock.monotonic_s() - began_s)
        await self._publish(run)
        return answered

    def _open_items(self, part: Chunk) -> list[tuple[JobRef, Item]]:
        if self._closed.is_closed(part.job.job_id):
            metrics.ITEMS_SKIPPED.inc(len(part.items))
            return []
        return [(part.job, item) for item in part.items]

    async def _execute(self, run: _Run) -> None:
        if not run.items:
            return
        bodies = await self._bodies(run)
        asked = [position for position in range(len(run.items)) if position not in run.answers]

        def finished(index: int, answer: Answer) -> None:
            run.answers[asked[index]] = answer
            self._capacity.ended(run.batch, 1)

        endpoint = run.items[0][0].endpoint
        await self._engine.execute(endpoint, [bodies[p] for p in asked], finished)

    async def _bodies(self, run: _Run) -> list[bytes]:
        bodies = []
        for position, (job, item) in enumerate(run.items):
            if not item.length:
                bodies.append(item.body)
                continue
            try:
                bodies.append(await asyncio.to_thread(load_body, self._objects, job, item))
            except ObjectMissingError:
                bodies.append(b"")
                run.answers[position] = _INPUT_MISSING
                self._capacity.ended(run.batch, 1)
        return bodies

    async def _publish(self, run: _Run) -> None:
        """Send what ended and what goes back; return when all of it is acknowledged."""
        acknowledged = _Acknowledgements(asyncio.get_running_loop())
        for job, positions in _by_job(run.items).items():
            done = [
                _outcome(run.items[p][1], run.answers[p]) for p in positions if p in run.answers
            ]
            back = [run.items[p][1] for p in positions if p not in run.answers]
            if done:
                _count(done)
                done = await self._without_large_bodies(job, done)
                acknowledged.expect(send_outcomes(self._producer, job, done, acknowledged.report))
            if back:
                metrics.ITEMS_HANDED_BACK.inc(len(back))
                self._capacity.ended(run.batch, len(back))
                acknowledged.expect(
                    send_back(self._producer, job, back, self._job_class, acknowledged.report)
                )
        await acknowledged.wait()

    async def _without_large_bodies(
        self, job: JobRef, outcomes: list[ItemOutcome]
    ) -> list[ItemOutcome]:
        """Put bodies that fit no record into the object store, under a name of this execution."""
        for place, outcome in enumerate(outcomes):
            if len(outcome.body) > ANSWER_BYTES_MAX:
                key = await asyncio.to_thread(store_body, self._objects, job.job_id, outcome.body)
                outcomes[place] = msgspec.structs.replace(outcome, body=b"", body_key=key)
        return outcomes


class _Acknowledgements:
    """Counts deliveries that the producer's thread reports, for a task on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open = 0
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()

    def expect(self, count: int) -> None:
        self._open += count

    def report(self, failure: BaseException | None) -> None:
        self._loop.call_soon_threadsafe(self._settle, failure)

    async def wait(self) -> None:
        while self._open > 0 and self._failure is None:
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure

    def _settle(self, failure: BaseException | None) -> None:
        self._open -= 1
        self._failure = self._failure or failure
        self._changed.set()


def _outcome(item: Item, answer: Answer) -> ItemOutcome:
    succeeded = answer.status_code < _FIRST_ERROR_STATUS
    return ItemOutcome(
        item.index,
        item.custom_id,
        Outcome.SUCCEEDED if succeeded else Outcome.FAILED,
        answer.status_code,
        answer.body,
        None,
        None,
        answer.input_tokens,
        answer.output_tokens,
        answer.cached_tokens,
        answer.reasoning_tokens,
        item.attempt,
    )


def _count(outcomes: list[ItemOutcome]) -> None:
    succeeded = sum(outcome.outcome is Outcome.SUCCEEDED for outcome in outcomes)
    if succeeded:
        metrics.ITEMS_EXECUTED.labels(Outcome.SUCCEEDED.label).inc(succeeded)
    if failed := len(outcomes) - succeeded:
        metrics.ITEMS_EXECUTED.labels(Outcome.FAILED.label).inc(failed)


def _by_job(items: list[tuple[JobRef, Item]]) -> dict[JobRef, list[int]]:
    """Return the positions of each job's items, in order."""
    grouped: dict[UUID, tuple[JobRef, list[int]]] = {}
    for position, (job, _) in enumerate(items):
        grouped.setdefault(job.job_id, (job, []))[1].append(position)
    return dict(grouped.values())


_INPUT_MISSING = Answer(
    status_code=500,
    body=b'{"error":{"message":"The input file of this request is no longer stored.",'
    b'"type":"server_error","param":null,"code":"input_missing"}}',
)
