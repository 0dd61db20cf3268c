"""Runs online calls, each by its own task, and makes every call's end durable on the log.

1. Drop what nobody waits for. 2. Ask the caller of a call that may have run before. 3. Execute,
pieces going out as they come. 4. Publish the end, and the outcome of a durable call, or put the
call back where its pool failed it. 5. Report the batch finished when all of it is acknowledged.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from core.clock import Clock
from core.errors import PoolBusyError, PoolUnavailableError
from core.ids import new_uuid
from core.supervised_tasks import SupervisedTasks
from gpu_consumers import metrics
from gpu_consumers.cancellation.wanted_calls import WantedCalls
from gpu_consumers.engines.engine import Answer, Engine
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher
from gpu_consumers.flow_control.pool_health import PoolHealth
from gpu_consumers.inflight.delivery import Delivery
from gpu_consumers.inflight.online_call import Cut, OnlineCall
from gpu_consumers.inflight.outcomes import CRASHES_ENGINE
from gpu_consumers.inflight.replies import ReplyPublisher
from gpu_consumers.online.call_endings import CallEnds
from gpu_consumers.online.call_serving import CallServing
from gpu_consumers.online.completed_calls import EndedCalls
from gpu_consumers.quarantine.rerun_permission import Questions
from gpu_consumers.quarantine.suspect_calls import SuspectCalls
from storage.objects.object_store import ObjectStore
from topics.clients.offsets import Partition
from topics.clients.producer import LogProducer
from topics.records.records import CallerNews, Chunk, Item
from topics.tail_readers.callers import Callers
from topics.tail_readers.job_controls import JobControls

LOOK_S: Final = 0.5
"""How often running calls are looked at for silent callers and deadlines."""

_LOOK_COUNT: Final = 500  # calls looked at in one turn of the loop


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineParts:
    """What executing online calls needs."""

    engine: Engine
    producer: LogProducer
    replies: ReplyPublisher
    objects: ObjectStore
    callers: Callers
    controls: JobControls
    capacity: CapacityPublisher
    pool: PoolHealth
    tasks: SupervisedTasks
    suspects: SuspectCalls
    clock: Clock


class OnlineExecution:
    """Executes the batches of class interactive. All methods run on the event loop."""

    def __init__(self, parts: OnlineParts) -> None:
        """Nothing runs yet."""
        self._parts = parts
        self._clock, self._capacity = parts.clock, parts.capacity
        self._wanted = WantedCalls(parts.callers, parts.controls, parts.clock)
        self._serving = CallServing(parts.engine, parts.objects, parts.pool, parts.clock)
        self._questions = Questions(parts.replies.ask)
        self._ends = CallEnds(parts.producer, parts.objects, parts.pool)
        self._running: dict[UUID, OnlineCall] = {}
        self._ended = EndedCalls()
        self._is_draining = False

    def begin(self, delivery: Delivery, finished: Callable[[], None]) -> None:
        """Take over a batch; `finished` is called when everything of it is acknowledged.

        A failure that the process cannot go on with ends its task, and `finished` never comes.
        """
        arrived_s = self._clock.monotonic_s()
        calls = [
            self._call(delivery, part, item, arrived_s)
            for part in delivery.batch.parts
            for item in part.items
        ]
        self._capacity.arrived(delivery.batch, len(calls))
        left = len(calls)

        def one_ended(task: asyncio.Task[None]) -> None:
            nonlocal left
            if not task.cancelled() and task.exception() is None:
                left -= 1
                if left == 0:
                    finished()

        for call in calls:
            call.task = self._parts.tasks.start(self._run(call))
            call.task.add_done_callback(one_ended)
        if not calls:
            finished()

    def heard(self, news: CallerNews) -> None:
        """Act on a caller's decisions at once."""
        for request_id in news.aborted:
            call = self._running.get(request_id)
            if call is not None:
                call.stop(Cut.CALLER)
        self._questions.permitted(news.permitted)
        if news.leaving:
            for call in self._running.values():
                if call.job.call is not None and call.job.call.caller_id == news.caller_id:
                    self._wanted.stop_if_over(call)

    async def watch(self) -> None:
        """Stop calls whose caller fell silent or whose deadline passed, until cancelled.

        Raises what ended the following of callers.
        """
        while True:
            await asyncio.sleep(LOOK_S)
            metrics.CALLS_RUNNING.set(len(self._running))
            for number, call in enumerate([*self._running.values()], 1):
                self._wanted.stop_if_over(call)
                if number % _LOOK_COUNT == 0:
                    await asyncio.sleep(0)

    def let_go(self, partitions: Collection[Partition], *, lost: bool) -> asyncio.Task[None]:
        """Go on with calls of partitions that move; return what tells their next owner of them.

        A durable one may run there, too: that it left here is no crash. Others are committed past,
        unless they are `lost`.
        """
        running = self._running.values()
        moving = [c for c in running if c.place in partitions and (lost or c.is_durable)]
        return self._parts.tasks.start(self._parts.suspects.let_go(moving, lost=lost))

    def drain(self) -> None:
        """Run what has begun; what comes now goes back."""
        self._is_draining = True

    def hand_back(self) -> None:
        """Cut short what runs: what has said nothing yet goes back."""
        self._is_draining = True
        for call in self._running.values():
            call.stop(Cut.DRAIN)

    def _call(self, delivery: Delivery, part: Chunk, item: Item, arrived_s: float) -> OnlineCall:
        batch, job = delivery.batch, part.job
        return OnlineCall(
            batch=batch,
            job=job,
            item=item,
            replies=self._parts.replies.open(job.call, job.job_id, new_uuid()),
            arrived_s=arrived_s,
            may_have_run=delivery.may_have_run or part.redelivered,
            waited_s=part.waited_s,
            place=(delivery.record.topic, delivery.record.partition),
            generation=delivery.generation,
        )

    async def _run(self, call: OnlineCall) -> None:
        while (first := self._running.get(call.request_id)) is not None:
            assert first.task is not None
            await asyncio.wait([first.task])
        if call.request_id in self._ended:  # that end is this one's
            self._capacity.ended(call.batch, 1)
            return
        # Of two deliveries at once the first may have gone back, and this may be what came of it.
        self._running[call.request_id] = call
        try:
            answer = await self._until_cut(call)
            if await self._ends.publish(call, answer):
                self._ended.add(call.request_id)
            await self._parts.suspects.ended(call)
        finally:
            del self._running[call.request_id]

    async def _until_cut(self, call: OnlineCall) -> Answer | None:
        """Return the engine's answer; None when the call was cut."""
        try:
            answer = await self._answer(call)
            if call.cut is Cut.PIECE_TOO_LARGE:
                return None
            if answer is not None:
                call.cut = None  # the answer was faster
                self._capacity.answered(1)
            return answer
        except asyncio.CancelledError:
            if call.cut is None:
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            return None
        except PoolUnavailableError as failure:
            if not isinstance(failure, PoolBusyError):
                self._parts.pool.away()
            call.cut = self._wanted.why_over(call) or Cut.POOL
            return None
        finally:
            call.settle()
            self._capacity.ended(call.batch, 1)

    async def _answer(self, call: OnlineCall) -> Answer | None:
        cut = await self._wanted.why_not_begun(call)
        if call.cut is None:  # else somebody cut it in this turn, and that is why it ends
            call.cut = Cut.DRAIN if cut is None and self._is_draining else cut
        if call.cut is not None:
            return None
        caller, is_suspect = call.job.call, call.may_have_run
        if is_suspect and caller is not None and not caller.durable:
            if not await self._questions.may_run(caller, call.request_id):
                call.cut = Cut.UNPERMITTED
                return None
            call.may_have_run = False
        body = await self._serving.body(call)
        if isinstance(body, Answer):
            return body
        if not is_suspect:
            async with self._parts.suspects.beside():
                return await self._serving.serve(call, body)
        async with self._parts.suspects.entered(call) as may_run:
            return await self._serving.serve(call, body) if may_run else CRASHES_ENGINE
