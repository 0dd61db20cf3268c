"""Runs online calls, each by its own task, and makes every call's end durable on the log.

1. Drop what nobody waits for. 2. Ask the caller of a call that may have run before. 3. Execute,
pieces going out as they come. 4. Publish the end, and the outcome of a durable call, or put the
call back where its pool failed it. 5. Report the batch finished when all of it is acknowledged.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import msgspec

from core.clock import Clock
from core.errors import Disposition, MillraceError, PoolUnavailableError
from gpu_consumers import metrics
from gpu_consumers.bodies import load_body
from gpu_consumers.call_ends import CallEnds
from gpu_consumers.capacity import CapacityPublisher
from gpu_consumers.consumer import Delivery
from gpu_consumers.encrypted_bodies import BODY_UNREADABLE, EncryptedBodies
from gpu_consumers.ended_calls import EndedCalls
from gpu_consumers.engines.engine import Answer, Emit, Engine
from gpu_consumers.online_answers import FIRST_ERROR_STATUS
from gpu_consumers.online_call import Cut, OnlineCall
from gpu_consumers.outcomes import CRASHES_ENGINE, INPUT_MISSING
from gpu_consumers.pool_health import PoolHealth
from gpu_consumers.questions import Questions
from gpu_consumers.replies import PIECE_BYTES_MAX, ReplyPublisher
from gpu_consumers.running_tasks import RunningTasks
from gpu_consumers.suspect_calls import SuspectCalls
from storage.body_ciphers import Place, Way
from storage.objects import ObjectStore
from topics.callers import Callers
from topics.control import JobControls
from topics.producer import LogProducer
from topics.records import CallerNews, Chunk, Item

LOOK_S = 0.5
"""How often running calls are looked at for silent callers and deadlines."""

NEWS_WAIT_S = 1.5
"""How long a call waits, without a place in the engine, for a sign of its silent caller."""

_NEWS_LOOK_S = 0.05
_LOOK_COUNT = 500  # calls looked at in one turn of the loop


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineParts:
    """What executing online calls needs."""

    engine: Engine
    producer: LogProducer
    replies: ReplyPublisher
    objects: ObjectStore
    callers: Callers
    closed: JobControls
    capacity: CapacityPublisher
    pool: PoolHealth
    tasks: RunningTasks
    suspects: SuspectCalls
    clock: Clock


class OnlineExecution:
    """Executes the batches of class interactive. All methods run on the event loop."""

    def __init__(self, parts: OnlineParts) -> None:
        """Nothing runs yet."""
        self._parts = parts
        self._clock, self._capacity = parts.clock, parts.capacity
        self._questions = Questions(parts.replies.ask)
        self._ends = CallEnds(parts.producer, parts.objects, parts.pool)
        self._running: dict[UUID, OnlineCall] = {}
        self._ended = EndedCalls()
        self._encrypted = EncryptedBodies(parts.objects, parts.clock)
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
                    self._stop_if_over(call)

    async def watch(self) -> None:
        """Stop calls whose caller fell silent or whose deadline passed, until cancelled.

        Raises what ended the following of callers.
        """
        while True:
            await asyncio.sleep(LOOK_S)
            metrics.CALLS_RUNNING.set(len(self._running))
            for number, call in enumerate([*self._running.values()], 1):
                self._stop_if_over(call)
                if number % _LOOK_COUNT == 0:
                    await asyncio.sleep(0)

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
            replies=self._parts.replies.open(job.call, job.job_id, batch.batch_id),
            arrived_s=arrived_s,
            may_have_run=delivery.may_have_run or part.redelivered,
            waited_s=part.waited_s,
            generation=delivery.generation,
        )

    async def _run(self, call: OnlineCall) -> None:
        first = self._running.get(call.request_id)
        if first is not None or call.request_id in self._ended:
            self._capacity.ended(call.batch, 1)
            if first is not None and first.task is not None:
                await asyncio.wait([first.task])  # its end is this one's
            return
        self._running[call.request_id] = call
        try:
            answer = await self._until_cut(call)
            if await self._ends.publish(call, answer):
                self._ended.add(call.request_id)
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
            return answer
        except asyncio.CancelledError:
            if call.cut is None:
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            return None
        except PoolUnavailableError:
            self._parts.pool.away()
            call.cut = self._why_over(call) or Cut.POOL
            return None
        finally:
            call.is_cuttable = False
            self._capacity.ended(call.batch, 1)

    async def _answer(self, call: OnlineCall) -> Answer | None:
        call.cut = await self._why_not_begun(call) or (Cut.DRAIN if self._is_draining else None)
        if call.cut is not None:
            return None
        caller, is_suspect = call.job.call, call.may_have_run
        if is_suspect and caller is not None and not caller.durable:
            if not await self._questions.may_run(caller, call.request_id):
                call.cut = Cut.UNPERMITTED
                return None
            call.may_have_run = False
        body = await self._body(call)
        if isinstance(body, Answer):
            return body
        if not is_suspect:
            return await self._serve(call, body)
        async with self._parts.suspects.entered(call) as may_run:
            return await self._serve(call, body) if may_run else CRASHES_ENGINE

    async def _serve(self, call: OnlineCall, body: bytes) -> Answer:
        began_s = self._clock.monotonic_s()
        call.has_begun = True
        try:
            emit = self._emit(call) if call.is_stream else None
            answer = await self._parts.engine.serve(call.job.endpoint, body, emit, call.meter)
        finally:
            call.execution_s = self._clock.monotonic_s() - began_s
        self._parts.pool.answered()
        if answer.body and answer.status_code < FIRST_ERROR_STATUS:
            return msgspec.structs.replace(answer, body=call.stamp(answer.body))
        return answer

    def _emit(self, call: OnlineCall) -> Emit:
        stamp = call.stamp

        def emit(said: bytes) -> None:
            if call.cut is not None:
                return
            piece = stamp(said)
            if call.cipher is not None:
                place = Place(call.request_id, Way.OUT, call.piece_count)
                piece = call.cipher.encrypt(piece, place)
            if len(piece) > PIECE_BYTES_MAX:
                call.stop(Cut.PIECE_TOO_LARGE)
                return
            if not call.piece_count:
                metrics.FIRST_PIECE_SECONDS.observe(self._clock.monotonic_s() - call.arrived_s)
            call.piece_count += 1
            call.replies.piece(piece)
            if call.is_durable:
                call.kept.append(piece)

        return emit

    async def _body(self, call: OnlineCall) -> bytes | Answer:
        """Return what to ask, or the answer of a request whose object is not what was stored."""
        if not (call.item.length or call.job.key_name):
            return call.item.body
        try:
            if call.job.key_name:
                return await self._encrypted.open_call(call)
            return await asyncio.to_thread(load_body, self._parts.objects, call.job, call.item)
        except MillraceError as failure:
            if failure.disposition is Disposition.REJECT:
                return BODY_UNREADABLE if call.job.key_name else INPUT_MISSING
            if failure.disposition is Disposition.CRASH:
                raise
            raise PoolUnavailableError(failure.code) from None  # the store is part of the pool

    async def _why_not_begun(self, call: OnlineCall) -> Cut | None:
        """As `_why_over`, but a silent caller may be heard late: after a broker's restart, say."""
        cut = self._why_over(call)
        until_s = call.arrived_s + NEWS_WAIT_S
        while cut is Cut.SILENT and self._clock.monotonic_s() < until_s:
            await asyncio.sleep(_NEWS_LOOK_S)
            cut = self._why_over(call)
        return cut

    def _stop_if_over(self, call: OnlineCall) -> None:
        cut = self._why_over(call)
        if cut is not None:
            call.stop(cut)

    def _why_over(self, call: OnlineCall) -> Cut | None:
        """Return why nobody needs the call any more; None while somebody does."""
        if self._parts.closed.is_closed(call.request_id):
            return Cut.CLOSED
        caller = call.job.call
        if caller is None or not self._parts.callers.is_gone(call.job):
            return None
        if self._parts.callers.is_expired(call.job):
            return Cut.DEADLINE
        return Cut.CALLER if self._parts.callers.is_alive(caller.caller_id) else Cut.SILENT
