"""Runs a batch on the engine and makes every item's end durable on the log.

1. Skip items that are not wanted any more. 2. Execute. 3. Publish outcomes, one record stream per
job; what the pool could not answer goes back to its requests. 4. Report the batch finished, only
when every record is acknowledged. The order is the guarantee (docs/delivery.md).
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from core.clock import Clock
from core.errors import PoolBusyError
from gpu_consumers import metrics
from gpu_consumers.cancellation.wanted import Wanted
from gpu_consumers.engines.engine import Engine, EngineAnswer
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher
from gpu_consumers.inflight.acknowledgements import Acknowledgements
from gpu_consumers.inflight.batch_run import BatchRun, Cut, Ending, cancel_once, is_ending
from gpu_consumers.inflight.delivery import Delivery
from gpu_consumers.inflight.outcomes import ANSWER_MISSING, by_part, count_outcomes, outcome_of
from gpu_consumers.inflight.publishing import send_back, send_outcomes
from gpu_consumers.payloads.stored_bodies import StoredBodies
from gpu_consumers.quarantine.crash_attribution import Trials
from gpu_consumers.quarantine.turns import Turns
from storage.objects.object_store import ObjectStore
from topics.clients.producer import LogProducer
from topics.records.records import JobRef, Unit

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionParts:
    """What executing batches needs."""

    engine: Engine
    producer: LogProducer
    objects: ObjectStore
    wanted: Wanted
    capacity: CapacityPublisher
    job_class: str
    clock: Clock


class BatchExecution:
    """Executes batches; several at once, each by its own task on the event loop."""

    def __init__(self, parts: ExecutionParts, turns: Turns, trials: Trials) -> None:
        """Nothing runs yet."""
        self._engine, self._producer = parts.engine, parts.producer
        self._wanted, self._capacity = parts.wanted, parts.capacity
        self._job_class, self._clock = parts.job_class, parts.clock
        self._bodies = StoredBodies(parts.objects, parts.clock)
        self._turns, self._trials = turns, trials
        self._handing_back = False
        self.runs: set[BatchRun] = set()
        """What has begun and not ended."""

    def begin(self, delivery: Delivery) -> BatchRun:
        """Take over a batch. Of one that may have run before, positions are those of the record."""
        batch = delivery.batch
        items = [
            (part.job, item)
            for part in batch.parts
            if delivery.may_have_run or not self._is_over(part.job, len(part.items))
            for item in part.items
        ]
        total = sum(len(part.items) for part in batch.parts)
        metrics.BATCH_ITEMS.observe(total)
        self._capacity.arrived(batch, total)
        self._capacity.ended(batch, total - len(items))
        run = BatchRun(delivery, items)
        if self._handing_back:
            run.cut = Cut.HAND_BACK
        self.runs.add(run)
        return run

    def end(self, run: BatchRun) -> None:
        """Nothing more of the batch will run here."""
        held = len(run.items) - len(run.answers) - len(run.given_up)
        self._capacity.ended(run.delivery.batch, held)
        self.runs.discard(run)

    async def whole(self, run: BatchRun) -> Ending | None:
        """Execute a batch with others; return when its records are acknowledged.

        None when there was nothing to ask. An object store that is away is part of the pool. What
        was too much at once is not put back, wherever the store is. Cancelling the call leaves the
        batch to its redelivery. Raises EngineDeadError, DeliveryError, and whatever else the
        process cannot go on with.
        """
        if not run.items:
            return None
        positions = range(len(run.items))
        began_s = self._clock.monotonic_s()
        ending = await self.ask(run, positions)
        metrics.EXECUTION_SECONDS.observe(self._clock.monotonic_s() - began_s)
        if ending is Ending.OUT_OF_MEMORY:
            await self.publish(run, positions, puts_back=False)
            return ending
        await self.publish(run, positions, puts_back=run.cut is not Cut.DROP)
        return Ending.AWAY if run.store_away else ending

    def hand_back(self) -> None:
        """Cut short what runs, and what comes: answers are published, the rest goes back."""
        self._handing_back = True
        for run in self.runs:
            run.stop(Cut.HAND_BACK)

    def open_positions(self, run: BatchRun, unit: Unit) -> list[int]:
        """Return what of a unit has no answer and still counts."""
        return [
            position
            for position in range(unit.first, unit.first + unit.count)
            if position not in run.answers and self._wanted.over(run.items[position][0]) is None
        ]

    async def ask(
        self, run: BatchRun, positions: Sequence[int], *, has_entered: bool = False
    ) -> Ending:
        """Execute these items, beside other batches; the caller may have come in for them."""
        return await run.until_cut(self._ask(run, positions, has_entered=has_entered))

    def answer(self, run: BatchRun, position: int, answer: EngineAnswer) -> None:
        """Give an item an answer that is ours and not the engine's."""
        run.answers[position] = answer
        self._give_back(run, [position])

    async def publish(self, run: BatchRun, positions: Sequence[int], *, puts_back: bool) -> None:
        """Send the outcomes of these items; return when all that was sent is acknowledged.

        An answer that the object store does not take sends its item back to be executed again;
        with `puts_back` go also those without an answer. What is not wanted any more goes nowhere:
        the close of its job fills its row, or a resume emits it again.
        """
        acknowledged = Acknowledgements(asyncio.get_running_loop())
        for job, its in by_part(run.items, positions):
            done = [outcome_of(run.items[p][1], run.answers[p]) for p in its if p in run.answers]
            done = await self._bodies.fit_for_log(run, job, done)
            if done:
                count_outcomes(done)
                acknowledged.expect(send_outcomes(self._producer, job, done, acknowledged.report))
            if len(done) < len(its) and self._wanted.over(job) is None:
                ended = {outcome.index for outcome in done}
                back = [
                    run.items[p][1]
                    for p in its
                    if run.items[p][1].index not in ended and (puts_back or p in run.answers)
                ]
                metrics.ITEMS_HANDED_BACK.inc(len(back))
                acknowledged.expect(
                    send_back(self._producer, job, back, self._job_class, acknowledged.report)
                )
        await acknowledged.wait()

    def _is_over(self, job: JobRef, item_count: int) -> bool:
        reason = self._wanted.over(job)
        if reason is None:
            return False
        metrics.ITEMS_SKIPPED.labels(reason).inc(item_count)
        return True

    async def _ask(self, run: BatchRun, positions: Sequence[int], *, has_entered: bool) -> None:
        """Come in with others, unless the caller has seen to it and tells of it."""
        if has_entered:
            await self._ask_parts(run, positions)
            return
        await self._turns.enter()
        try:
            async with self._trials.beside():
                await self._ask_parts(run, positions)
        finally:
            self._turns.leave()

    async def _ask_parts(self, run: BatchRun, positions: Sequence[int]) -> None:
        try:
            bodies = await self._bodies.load(run, positions, partial(self.answer, run))
            for job, its in by_part(run.items, bodies):
                if self._wanted.over(job) is None:
                    work = self._ask_part(run, {p: bodies[p] for p in its})
                    run.parts.append((job, asyncio.create_task(work)))
                else:
                    self._give_up(run, its)
            await _all_of([task for _, task in run.parts])
        finally:
            run.parts = []

    async def _ask_part(self, run: BatchRun, bodies: Mapping[int, bytes]) -> None:
        """Ask for items of one job; of several in a batch each can be cut without the others."""
        is_over = False
        answers = run.answers
        asked = list(bodies)
        fresh: list[int] = []  # answered in this turn of the loop
        call_soon = asyncio.get_running_loop().call_soon

        def finished(index: int, answer: EngineAnswer) -> None:
            position = asked[index]
            if is_over or position in answers:
                return  # the credit of an item comes back once
            answers[position] = answer
            if not fresh:
                call_soon(give_back)
            fresh.append(position)

        def give_back() -> None:
            if fresh:
                self._capacity.answered(len(fresh))
                self._give_back(run, fresh)
                fresh.clear()

        try:
            endpoint = run.items[asked[0]][0].endpoint
            try:
                await self._engine.execute(endpoint, list(bodies.values()), finished)
            except PoolBusyError:
                return  # what has no answer goes back; the others go on
            # An engine that returns has reported every item; asking again would go on for ever.
            for index, position in enumerate(asked):
                if position not in answers:
                    _LOG.error("an engine returned without an answer")
                    finished(index, ANSWER_MISSING)
        except asyncio.CancelledError:
            if self._wanted.over(run.items[asked[0]][0]) is not None:
                self._give_up(run, [p for p in asked if p not in answers])
            raise
        finally:
            is_over = True
            give_back()

    def _give_up(self, run: BatchRun, positions: Sequence[int]) -> None:
        """Give back the credit of items that nobody wants: the rest of the batch may take long."""
        new = set(positions) - run.given_up
        run.given_up |= new
        self._capacity.ended(run.delivery.batch, len(new))

    def _give_back(self, run: BatchRun, positions: Sequence[int]) -> None:
        """Give back the credits of items that were answered, but those that are back already."""
        count = len(positions)
        if run.given_up:
            count -= len(run.given_up.intersection(positions))
            run.given_up.difference_update(positions)
        self._capacity.ended(run.delivery.batch, count)


async def _all_of(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for all but those that are cancelled, until one fails.

    Raises what it raised; of several what ends the process, if there is such.
    """
    if not tasks:
        return
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        running = [task for task in tasks if not task.done()]
        for task in running:
            cancel_once(task)
        if running:
            await asyncio.wait(running)
    failures = [task.exception() for task in tasks if not task.cancelled()]
    failed = [failure for failure in failures if failure is not None]
    if failed:
        raise min(failed, key=is_ending)
