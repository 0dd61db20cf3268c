"""Executes the items of bulk batches and publishes their outcomes.

`BulkWorker` and `Quarantine` decide which items run when; see `BulkWorker` for the order of steps.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from core.clock import Clock, SystemClock
from core.errors import PoolBusyError
from core.stages import NO_STAGE_TIMES, Stage, StageTimes, whole_ms
from gpu_consumers import metrics
from gpu_consumers.adapters.adapter_slots import adapter_of
from gpu_consumers.bulk.other_versions import mark_other_version
from gpu_consumers.cancellation.liveness import BatchLiveness
from gpu_consumers.engines.engine import Engine, EngineAnswer
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher
from gpu_consumers.flow_control.token_usage import item_charges
from gpu_consumers.flow_control.warm_model import ANY_VERSION, WarmModel
from gpu_consumers.inflight.batch_run import (
    BatchAbortReason,
    BatchRun,
    DeliveredBatch,
    cancel_once,
    is_survivable,
)
from gpu_consumers.inflight.item_outcomes import (
    ANSWER_MISSING,
    count_outcomes,
    group_by_job,
    outcome_of,
)
from gpu_consumers.inflight.pending_sends import PendingSends
from gpu_consumers.payloads.bodies import (
    STORE_WAIT_S,
    BatchBodies,
    is_body_stored,
    needs_store,
)
from gpu_consumers.payloads.engine_bodies import PrepareBody
from gpu_consumers.quarantine.crash_attribution import CrashAttribution
from gpu_consumers.quarantine.locks import SharedExclusiveLock
from topics.clients.producer import RecordProducer
from topics.metrics import STAGE_SECONDS
from topics.records.attempts import AttemptUnit
from topics.records.chunks import item_positions
from topics.records.records import Item, JobRef

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class BatchExecution:
    """Executes several batches at once. All methods are called on the event loop."""

    engine: Engine
    producer: RecordProducer
    bodies: BatchBodies
    prepare_body: PrepareBody | None  # None: the engine gets bodies unchanged
    liveness: BatchLiveness
    capacity: CapacityPublisher
    lock: SharedExclusiveLock  # quarantined units take it exclusively
    attribution: CrashAttribution
    served: WarmModel = ANY_VERSION
    clock: Clock = field(default_factory=SystemClock)
    runs: set[BatchRun] = field(default_factory=set)  # the batches in flight
    _requeues_new_runs: bool = False

    def accept_batch(self, delivered: DeliveredBatch) -> BatchRun:
        """Count the batch as in flight and drop items of closed, paused and expired jobs.

        Nothing is dropped of a redelivered batch: its attempts name positions in the record. Items
        whose model version is not the one here are requeued.
        """
        batch = delivered.batch
        items: list[tuple[JobRef, Item]] = []
        job_positions: list[int | None] = []
        token_charges: list[float] = []
        # The first owner of a redelivered batch may have settled its items.
        has_token_charges = not delivered.is_redelivered and all(
            part.charged is not None for part in batch.parts
        )
        for part in batch.parts:
            charges = item_charges(part) if has_token_charges else []
            if delivered.is_redelivered or not self._drop_items(part.job, len(part.items)):
                items += [(part.job, item) for item in part.items]
                job_positions += item_positions(part)
                token_charges += charges
            else:
                ended = [(None, charge) for charge in charges]
                self.capacity.usage.settle(part.job, ended, batcher_id=batch.batcher_id)
        total = sum(len(part.items) for part in batch.parts)
        metrics.BATCH_ITEMS.observe(total)
        self.capacity.record_arrival(batch, total)
        self.capacity.record_end(batch, total - len(items))
        sends = PendingSends(self.producer, self.served.engine)
        run = BatchRun(delivered, items, job_positions, sends, token_charges)
        mark_other_version(run, self.served)
        if self._requeues_new_runs:
            run.abort_reason = BatchAbortReason.REQUEUE
        self.runs.add(run)
        return run

    def remove_batch(self, run: BatchRun) -> None:
        """Count the batch as ended: none of its items runs here any more."""
        open_count = len(run.items) - len(run.answers) - len(run.released)
        self.capacity.record_end(run.delivered.batch, open_count)
        self.runs.discard(run)
        if run.is_published and len(run.answers) < len(run.items):
            self._settle_requeued(run)

    def requeue_all(self) -> None:
        """Abort present and future batches: answers are published, other items requeued."""
        self._requeues_new_runs = True
        for run in self.runs:
            run.abort(BatchAbortReason.REQUEUE)

    def open_positions(self, run: BatchRun, unit: AttemptUnit) -> list[int]:
        """Return the positions of a unit whose items have no answer and are not to be dropped."""
        return [
            position
            for position in range(unit.first, unit.first + unit.count)
            if position not in run.answers
            and self.liveness.drop_reason(run.items[position][0]) is None
        ]

    async def execute_items(
        self, run: BatchRun, positions: Sequence[int], *, has_lock: bool = False
    ) -> None:
        """Run items on the engine; call it through `BatchRun.until_aborted`.

        Runs alongside other batches. A caller that has acquired the lock and the attribution for
        the items says so with `has_lock`. Raises PoolUnavailableError, EngineOutOfMemoryError or
        MemoryError when items have no answer, and failures that must end the process.
        """
        async with contextlib.nullcontext() if has_lock else self._run_alongside():
            stored = [p for p in positions if is_body_stored(*run.items[p])]
            try:
                if stored:  # a slow store must not delay the other items
                    others = sorted({*positions}.difference(stored))
                    parts = (self._load_and_execute(run, part) for part in (others, stored))
                    await _wait_for_all([asyncio.create_task(part) for part in parts])
                else:
                    await self._load_and_execute(run, positions)
            finally:
                run.job_tasks = []

    async def wait_for_store(self, run: BatchRun) -> None:
        """Wait before items that need the object store are requeued. They hold no credit then."""
        self._release_unanswered(run, [p for p in range(len(run.items)) if p not in run.answers])
        await run.until_aborted(asyncio.sleep(STORE_WAIT_S))
        run.is_store_unavailable = False  # large answers are stored once more

    def set_answer(self, run: BatchRun, position: int, answer: EngineAnswer) -> None:
        """Answer an item without the engine."""
        run.answers[position] = answer
        self._release_credit(run, [position])
        self._settle(run, [position])

    async def publish_outcomes(
        self, run: BatchRun, positions: Sequence[int], *, requeues: bool
    ) -> None:
        """Publish the outcomes of items; return when every record of the batch is acknowledged.

        An item whose answer the object store cannot take is requeued. With `requeues`, so are items
        without an answer, unless they are dropped: the close of their job writes their rows, or its
        resume emits them again. Raises DeliveryError.
        """
        if run.publishing is not None:
            await run.publishing
        run.sends.raise_failure()
        await self._publish(run, positions, requeues=requeues)
        await run.sends.wait_acknowledged()

    async def publish_early(self, run: BatchRun) -> None:
        """Send the outcomes that the batch has already, except those that need the object store.

        They are acknowledged later: those of one job may wait for its partition while others go on.
        An unavailable store ends the batch, not an early publication. Raises DeliveryError.
        """
        ready = [p for p, answer in run.answers.items() if not needs_store(run.items[p][0], answer)]
        await self._publish(run, ready, requeues=False)

    async def _publish(self, run: BatchRun, positions: Sequence[int], *, requeues: bool) -> None:
        """Send what was not sent before."""
        sends, times = run.sends, run.times
        positions = [p for p in positions if p not in run.published]
        run.published.update(p for p in positions if p in run.answers)
        for job, of_job in group_by_job(run.items, positions):
            outcomes = [
                outcome_of(run.items[p][1], run.answers[p], times.get(p, NO_STAGE_TIMES))
                for p in of_job
                if p in run.answers
            ]
            outcomes = await self.bodies.prepare_outcomes(run, job, outcomes)
            if outcomes:
                count_outcomes(outcomes)
                sends.send_outcomes(job, outcomes)
            if len(outcomes) < len(of_job) and self.liveness.drop_reason(job) is None:
                published = {outcome.index for outcome in outcomes}
                requeued = [
                    p
                    for p in of_job
                    if run.items[p][1].index not in published and (requeues or p in run.answers)
                ]
                metrics.ITEMS_HANDED_BACK.inc(len(requeued))
                items = [run.items[p][1] for p in requeued]
                sends.requeue_items(job, items, [run.job_positions[p] for p in requeued], "bulk")

    def _drop_items(self, job: JobRef, item_count: int) -> bool:
        reason = self.liveness.drop_reason(job)
        if reason is None:
            return False
        metrics.ITEMS_SKIPPED.labels(reason).inc(item_count)
        return True

    @contextlib.asynccontextmanager
    async def _run_alongside(self) -> AsyncIterator[None]:
        await self.lock.acquire_shared()
        try:
            async with self.attribution.run_alongside():
                yield
        finally:
            self.lock.release_shared()

    async def _load_and_execute(self, run: BatchRun, positions: Sequence[int]) -> None:
        """Run items, each job in a task of its own, so that it can be aborted alone."""
        bodies = await self.bodies.load_bodies(run, positions, partial(self.set_answer, run))
        tasks = []
        for job, of_job in group_by_job(run.items, bodies):
            if self.liveness.drop_reason(job) is None:
                work = self._execute_job(run, {p: bodies[p] for p in of_job})
                tasks.append(asyncio.create_task(work))
                run.job_tasks.append((job, tasks[-1]))
            else:
                self._release_unanswered(run, of_job)
        await _wait_for_all(tasks)

    async def _execute_job(self, run: BatchRun, bodies: Mapping[int, bytes]) -> None:
        """Execute the items of one job and release their credit as answers arrive."""
        has_returned = False
        job, answers = run.items[next(iter(bodies))][0], run.answers
        executed = list(bodies)
        new_answers: list[int] = []  # positions answered in this iteration of the event loop
        started_s = self.clock.monotonic_s()
        call_soon = asyncio.get_running_loop().call_soon

        def finished(index: int, answer: EngineAnswer) -> None:
            position = executed[index]
            if has_returned or position in answers:
                return  # the credit of an item is released once
            answers[position] = answer
            if not new_answers:
                call_soon(release_credit)
            new_answers.append(position)

        def release_credit() -> None:
            if new_answers:
                execution_s = self.clock.monotonic_s() - started_s
                times = self._stage_times(run, job, execution_s)
                run.times.update(dict.fromkeys(new_answers, times))
                self.capacity.record_answers(len(new_answers))
                self.attribution.host.record_answers(len(new_answers))
                self._release_credit(run, new_answers)
                self._settle_job(run, job, new_answers)
                newest = new_answers[-1]
                self.capacity.output_samples.add(job, bodies[newest], answers[newest])
                new_answers.clear()

        requests = list(bodies.values())
        if self.prepare_body is not None:
            requests = [self.prepare_body(body, job) for body in requests]
        try:
            try:
                await self.engine.execute(job.endpoint, requests, finished, adapter_of(job))
            except PoolBusyError:
                return  # items without an answer are requeued; other jobs go on
            # Without an answer the item would be requeued, possibly for ever.
            for index, position in enumerate(executed):
                if position not in answers:
                    _LOG.error("an engine returned without an answer")
                    finished(index, ANSWER_MISSING)
        except asyncio.CancelledError:
            if self.liveness.drop_reason(job) is not None:
                self._release_unanswered(run, [p for p in executed if p not in answers])
            raise
        finally:
            has_returned = True
            release_credit()

    def _stage_times(self, run: BatchRun, job: JobRef, execution_s: float) -> StageTimes:
        """Return the times of items of a part that end now, and count them."""
        part = next(part for part in run.delivered.batch.parts if part.job is job)
        STAGE_SECONDS.labels(Stage.EXECUTION, "bulk").observe(execution_s)
        return StageTimes(
            whole_ms(part.queued_s),
            whole_ms(part.waited_s),
            whole_ms(execution_s),
            int(1000 * self.clock.wall_s()),
        )

    def _settle_requeued(self, run: BatchRun) -> None:
        """Refund items that were requeued: where they run, they are charged again.

        Items of closed, paused and expired jobs may have run, and keep their estimates.
        """
        if run.abort_reason is BatchAbortReason.LOST:
            return
        unanswered = [p for p in range(len(run.items)) if p not in run.answers]
        for job, of_job in group_by_job(run.items, unanswered):
            if self.liveness.drop_reason(job) is None:
                self._settle(run, of_job)

    def _settle(self, run: BatchRun, positions: Sequence[int]) -> None:
        """Report what items used that are answered, or that are requeued."""
        for job, of_job in group_by_job(run.items, positions):
            self._settle_job(run, job, of_job)

    def _settle_job(self, run: BatchRun, job: JobRef, positions: Sequence[int]) -> None:
        """As `_settle`, for items of one job."""
        if run.token_charges:
            ended = [(run.answers.get(p), run.token_charges[p]) for p in positions]
            batcher_id = run.delivered.batch.batcher_id
            self.capacity.usage.settle(job, ended, batcher_id=batcher_id)

    def _release_unanswered(self, run: BatchRun, positions: Sequence[int]) -> None:
        """Release the credit of dropped items: the rest of their batch may run for long."""
        new = set(positions) - run.released
        run.released |= new
        self.capacity.record_end(run.delivered.batch, len(new))

    def _release_credit(self, run: BatchRun, positions: Sequence[int]) -> None:
        """Release the credit of answered items, except those released before."""
        count = len(positions)
        if run.released:
            count -= len(run.released.intersection(positions))
            run.released.difference_update(positions)
        self.capacity.record_end(run.delivered.batch, count)


async def _wait_for_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for all tasks; when one fails, cancel the others and raise a failure.

    Of several failures, one that must end the process comes first. Cancelled tasks do not count.
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
        raise min(failed, key=is_survivable)
