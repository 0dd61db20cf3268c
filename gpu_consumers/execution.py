"""Runs one batch on the engine and makes every item's end durable on the log.

1. Skip items of closed jobs. 2. Execute. 3. Publish outcomes, one record stream per job; what the
pool could not answer goes back to its requests. 4. Report the batch finished, only when every
record is acknowledged. The order is the guarantee (DESIGN, rule 1 of delivery).
"""

import asyncio
import logging
from dataclasses import dataclass, field

import msgspec

from core.clock import Clock
from core.errors import Disposition, MillraceError, PoolUnavailableError
from gpu_consumers import metrics
from gpu_consumers.acknowledgements import Acknowledgements
from gpu_consumers.bodies import ANSWER_BYTES_MAX, load_body, store_body
from gpu_consumers.capacity import CapacityPublisher
from gpu_consumers.engines.engine import Answer, Engine
from gpu_consumers.outcomes import (
    ANSWER_MISSING,
    INPUT_MISSING,
    by_job,
    count_outcomes,
    outcome_of,
)
from gpu_consumers.publishing import send_back, send_outcomes
from storage.objects import ObjectStore
from topics.control import ClosedJobs
from topics.producer import LogProducer
from topics.records import Batch, Chunk, Item, ItemOutcome, JobRef

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Run:
    """One batch in execution: what was asked and what has been answered."""

    batch: Batch
    items: list[tuple[JobRef, Item]]
    answers: dict[int, Answer] = field(default_factory=dict)
    store_away: bool = False  # what needs the object store goes back
    is_over: bool = False  # an answer that comes now counts no more


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
        self._executing: set[asyncio.Task[None]] = set()
        self._handing_back = False

    async def run(self, batch: Batch) -> bool | None:
        """Execute `batch`; return when its records are acknowledged: its offset may be committed.

        True when the pool answered, False when it was away, None when that is not known: nothing
        was asked, or `hand_back` came first. An object store that is away is part of the pool.
        Cancelling the call leaves the batch to its redelivery. Raises EngineDeadError,
        DeliveryError, and whatever else the process cannot go on with.
        """
        run = _Run(batch, [pair for part in batch.parts for pair in self._open_items(part)])
        total = sum(len(part.items) for part in batch.parts)
        self._capacity.arrived(batch, total)
        self._capacity.ended(batch, total - len(run.items))
        metrics.BATCH_ITEMS.observe(total)
        began_s = self._clock.monotonic_s()
        answered = await self._until_cut(run) if run.items else None
        metrics.EXECUTION_SECONDS.observe(self._clock.monotonic_s() - began_s)
        await self._publish(run)
        return False if run.store_away else answered

    def hand_back(self) -> None:
        """Cut short what runs, and what comes: answers are published, the rest goes back."""
        self._handing_back = True
        for executing in self._executing:
            executing.cancel()

    def _open_items(self, part: Chunk) -> list[tuple[JobRef, Item]]:
        if self._closed.is_closed(part.job.job_id):
            metrics.ITEMS_SKIPPED.inc(len(part.items))
            return []
        return [(part.job, item) for item in part.items]

    async def _until_cut(self, run: _Run) -> bool | None:
        if self._handing_back:
            return None
        # A task of its own: `hand_back` ends the execution alone, never the publishing after it.
        executing = asyncio.create_task(self._execute(run))
        self._executing.add(executing)
        try:
            await asyncio.wait([executing])
        except asyncio.CancelledError:
            executing.cancel()
            raise
        finally:
            self._executing.discard(executing)
            run.is_over = True
        if executing.cancelled():
            return None
        failure = executing.exception()
        if failure is not None and not isinstance(failure, PoolUnavailableError):
            raise failure
        return failure is None

    async def _execute(self, run: _Run) -> None:
        bodies = await self._bodies(run)
        asked = list(bodies)

        def finished(index: int, answer: Answer) -> None:
            position = asked[index]
            if run.is_over or position in run.answers:
                return  # the credit of an item comes back once
            run.answers[position] = answer
            self._capacity.ended(run.batch, 1)

        if asked:
            endpoint = run.items[0][0].endpoint
            await self._engine.execute(endpoint, list(bodies.values()), finished)
        # An engine that returns has reported every item; asking again would go on for ever.
        for index, position in enumerate(asked):
            if position not in run.answers:
                _LOG.error("an engine returned without an answer")
                finished(index, ANSWER_MISSING)

    async def _bodies(self, run: _Run) -> dict[int, bytes]:
        """Return what to ask, by position; without the items that the store does not give."""
        bodies: dict[int, bytes] = {}
        for position, (job, item) in enumerate(run.items):
            if not item.length:
                bodies[position] = item.body
            elif not run.store_away:
                try:
                    body = await asyncio.to_thread(load_body, self._objects, job, item)
                    bodies[position] = body
                except MillraceError as failure:
                    if not _is_refusal(failure, run):
                        continue
                    run.answers[position] = INPUT_MISSING
                    self._capacity.ended(run.batch, 1)
        return bodies

    async def _publish(self, run: _Run) -> None:
        """Send what ended and what goes back; return when all of it is acknowledged."""
        self._capacity.ended(run.batch, len(run.items) - len(run.answers))
        acknowledged = Acknowledgements(asyncio.get_running_loop())
        for job, positions in by_job(run.items).items():
            done = [
                outcome_of(run.items[p][1], run.answers[p]) for p in positions if p in run.answers
            ]
            if any(len(outcome.body) > ANSWER_BYTES_MAX for outcome in done):
                done = await self._without_large_bodies(run, job, done)
            if done:
                count_outcomes(done)
                acknowledged.expect(send_outcomes(self._producer, job, done, acknowledged.report))
            if len(done) < len(positions):
                ended = {outcome.index for outcome in done}
                back = [run.items[p][1] for p in positions if run.items[p][1].index not in ended]
                metrics.ITEMS_HANDED_BACK.inc(len(back))
                acknowledged.expect(
                    send_back(self._producer, job, back, self._job_class, acknowledged.report)
                )
        await acknowledged.wait()

    async def _without_large_bodies(
        self, run: _Run, job: JobRef, outcomes: list[ItemOutcome]
    ) -> list[ItemOutcome]:
        """Put bodies that fit no record into the object store, under a name of this execution.

        An outcome whose body it does not take is left out: its item is executed again.
        """
        kept = []
        for outcome in outcomes:
            if len(outcome.body) <= ANSWER_BYTES_MAX:
                kept.append(outcome)
            elif not run.store_away:
                try:
                    key = await asyncio.to_thread(
                        store_body, self._objects, job.job_id, outcome.body
                    )
                    kept.append(msgspec.structs.replace(outcome, body=b"", body_key=key))
                except MillraceError as failure:
                    if _is_refusal(failure, run):
                        raise
        return kept


def _is_refusal(failure: MillraceError, run: _Run) -> bool:
    """Whether the item is at fault, not the store, which is then noted to be away.

    Raises what the process cannot go on with, a store that refuses our key for example.
    """
    if failure.disposition is Disposition.CRASH:
        raise failure
    run.store_away = failure.disposition is Disposition.RETRY
    if run.store_away:
        _LOG.warning("the object store is away", extra={"code": failure.code})
    return not run.store_away
