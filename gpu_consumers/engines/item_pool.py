"""A bounded pool of workers that run the items of all calls, oldest call first.

A worker runs many items, so an item costs no task, semaphore or timer of its own. Between two items
it releases its slot if an online call waits. An item that a busy upstream refused releases its slot
and is the first to get one after its pause.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from core.errors import PoolBusyError, PoolUnavailableError
from gpu_consumers.engines.engine import EngineAnswer, OnAnswer
from gpu_consumers.engines.engine_slots import EngineSlots
from gpu_consumers.engines.openai_http.upstream_failures import CongestionWindow, LoadRefusals

RunItem = Callable[[str, bytes], Awaitable[EngineAnswer]]
"""Runs one body against an endpoint. Any exception but PoolBusyError fails the call."""


@dataclass(slots=True, eq=False)
class _Call:
    """One `execute`."""

    endpoint: str
    bodies: Sequence[bytes]
    finished: OnAnswer
    done: asyncio.Future[None]
    started: int = 0
    ended: int = 0
    workers: set[asyncio.Task[None]] = field(default_factory=set)  # running its items now
    retries: deque[int] = field(default_factory=deque)  # refused items whose pause is over
    pauses: dict[int, asyncio.TimerHandle] = field(default_factory=dict)
    refusals: dict[int, LoadRefusals] = field(default_factory=dict)
    busy_failure: PoolBusyError | None = None  # an item was refused for too long

    @property
    def waiting_count(self) -> int:
        return len(self.bodies) - self.started + len(self.retries)

    def pop_index(self) -> int:
        """Return the next waiting item; there must be one."""
        if self.retries:
            return self.retries.popleft()
        self.started += 1
        return self.started - 1


class ItemPool:
    """Runs the items of concurrent calls in the bulk slots."""

    def __init__(
        self, run: RunItem, slots: EngineSlots, congestion: CongestionWindow | None = None
    ) -> None:
        """`run` is called for each item. `slots` serves one pool.

        Without `congestion` no item may raise PoolBusyError.
        """
        self._run = run
        self._slots = slots
        self._congestion = congestion
        slots.on_bulk_available = self._start_workers
        slots.count_waiting_bulk = self._waiting_count
        self._waiting: deque[_Call] = deque()  # calls with waiting items
        self._workers: set[asyncio.Task[None]] = set()  # the loop references tasks weakly

    async def execute(self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer) -> None:
        """Run every body; raise what the first failing item raised, the others cancelled.

        A PoolBusyError is raised at the end: the item that was refused for too long has no answer.
        """
        if not bodies:
            return
        loop = asyncio.get_running_loop()
        call = _Call(endpoint, bodies, finished, loop.create_future())
        self._waiting.append(call)
        self._start_workers()
        try:
            await call.done
        finally:
            await self._cancel(call)

    def _start_workers(self) -> None:
        """Start a worker for each waiting item that gets a slot; each runs until none waits."""
        if not self._waiting:
            return
        for _ in range(self._slots.acquire_bulk(self._waiting_count())):
            worker = asyncio.create_task(self._work())
            self._workers.add(worker)

    def _waiting_count(self) -> int:
        return sum(call.waiting_count for call in self._waiting)

    async def _work(self) -> None:
        worker = asyncio.current_task()
        assert worker is not None
        has_slot = True
        try:
            while has_slot and self._waiting:
                call = self._waiting[0]
                index = call.pop_index()
                if not call.waiting_count:
                    self._waiting.popleft()
                call.workers.add(worker)
                try:
                    is_refused = await self._run_item(call, index)
                finally:
                    call.workers.discard(worker)
                if is_refused:
                    break
                has_slot = self._slots.reacquire_bulk()
        finally:
            if has_slot:
                self._slots.release_bulk(1)
            # Not in a done callback: the next call must see at once that a slot is free.
            self._workers.discard(worker)
            self._start_workers()  # a cancelled worker may leave items of other calls waiting

    async def _run_item(self, call: _Call, index: int) -> bool:
        """Run an item and report its answer; return whether it was refused and waits again."""
        try:
            answer = await self._run(call.endpoint, call.bodies[index])
            if not call.done.done():
                call.finished(index, answer)
        except PoolBusyError as busy:
            return self._postpone(call, index, busy)
        except Exception as failure:  # noqa: BLE001 - the worker goes on; the call fails
            self._end(call, failure)
        self._count_ended(call)
        return False

    def _count_ended(self, call: _Call) -> None:
        call.ended += 1
        if call.ended == len(call.bodies):
            self._end(call, call.busy_failure)

    def _postpone(self, call: _Call, index: int, busy: PoolBusyError) -> bool:
        """Pause a refused item before its next try; return False if there is none."""
        assert self._congestion is not None
        refusals = call.refusals.setdefault(index, LoadRefusals())
        try:
            pause_s = self._congestion.record_refusal(refusals, busy)
        except PoolBusyError as too_long:
            call.busy_failure = too_long
            self._count_ended(call)
            return False
        except PoolUnavailableError as unavailable:
            self._end(call, unavailable)
            return False
        if not call.done.done():
            call_later = asyncio.get_running_loop().call_later
            call.pauses[index] = call_later(pause_s, self._retry, call, index)
        return True

    def _retry(self, call: _Call, index: int) -> None:
        del call.pauses[index]
        call.retries.append(index)
        if call in self._waiting:
            self._waiting.remove(call)
        self._waiting.appendleft(call)  # ahead of items that have not been tried
        self._start_workers()

    def _end(self, call: _Call, failure: Exception | None) -> None:
        if call.done.done():
            return
        if failure is None:
            call.done.set_result(None)
        else:
            call.done.set_exception(failure)
        if call in self._waiting:
            self._waiting.remove(call)

    async def _cancel(self, call: _Call) -> None:
        """Cancel what an ended, failed or cancelled call still runs, and wait for its end."""
        if call in self._waiting:
            self._waiting.remove(call)
        for pause in call.pauses.values():
            pause.cancel()
        running = [*call.workers]
        for worker in running:
            worker.cancel()
        if running:
            await asyncio.wait(running)
