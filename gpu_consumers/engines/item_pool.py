"""A bounded pool of workers that run the items of every `execute`, oldest first.

A worker runs many items, so an item costs no task, semaphore or timer of its own. Between two items
it releases its slot if an online call waits. An item that a busy upstream refused releases its slot
and is the first to get one after its pause. With preemption, the item that started last is aborted
for an online call that waits for longer than a step; it runs again from its start.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from core.errors import PoolBusyError, PoolUnavailableError
from gpu_consumers import metrics
from gpu_consumers.engines.engine import EngineAnswer, OnAnswer
from gpu_consumers.engines.engine_slots import EngineSlots
from gpu_consumers.engines.openai_http.upstream_failures import CongestionWindow, LoadRefusals

PREEMPTION_WAIT_S: Final = 0.05
"""Time from the first call that waits for a slot until items are aborted for those that still wait:
about a step."""

PREEMPTIONS_MAX: Final = 2
"""Times that one item is aborted for online calls; then it runs to its end."""

RunItem = Callable[[str, bytes], Awaitable[EngineAnswer]]
"""Runs one body against an endpoint. Any exception but PoolBusyError fails its `execute`."""


@dataclass(slots=True, eq=False)
class _Execution:
    """One execution of `execute`: its items and their progress."""

    endpoint: str
    bodies: Sequence[bytes]
    finished: OnAnswer
    run: RunItem
    done: asyncio.Future[None]
    started: int = 0
    ended: int = 0
    workers: set[asyncio.Task[None]] = field(default_factory=set)  # running its items now
    retries: deque[int] = field(default_factory=deque)  # refused items whose pause is over
    pauses: dict[int, asyncio.TimerHandle] = field(default_factory=dict)
    refusals: dict[int, LoadRefusals] = field(default_factory=dict)
    preemptions: Counter[int] = field(default_factory=Counter)
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
    """Runs the items of concurrent executions in the bulk slots."""

    def __init__(
        self,
        run: RunItem,
        slots: EngineSlots,
        congestion: CongestionWindow | None = None,
        *,
        preempts: bool = False,
    ) -> None:
        """`run` is called for each item. `slots` serves one pool.

        Without `congestion` no item may raise PoolBusyError. `preempts`: abort items for online
        calls. An upstream may bill aborted requests, so only an engine of our own does.
        """
        self._run = run
        self._slots = slots
        self._congestion = congestion
        slots.on_bulk_available = self._start_workers
        slots.count_waiting_bulk = self._waiting_count
        self._waiting: deque[_Execution] = deque()  # with waiting items
        self._workers: set[asyncio.Task[None]] = set()  # the loop references tasks weakly
        self._running: dict[asyncio.Task[None], tuple[_Execution, int]] = {}  # the newest last
        self._preempted: set[asyncio.Task[None]] = set()  # cancelled for an online call
        self._preemption: asyncio.TimerHandle | None = None
        if preempts:
            slots.on_online_waiting = self._plan_preemption

    async def execute(
        self,
        endpoint: str,
        bodies: Sequence[bytes],
        finished: OnAnswer,
        run: RunItem | None = None,
    ) -> None:
        """Run every body; raise what the first failing item raised, the others cancelled.

        With `run`, the items are run by it instead of the pool's own function.
        A PoolBusyError is raised at the end: the item that was refused for too long has no answer.
        """
        if not bodies:
            return
        loop = asyncio.get_running_loop()
        execution = _Execution(endpoint, bodies, finished, run or self._run, loop.create_future())
        self._waiting.append(execution)
        self._start_workers()
        try:
            await execution.done
        finally:
            await self._cancel(execution)

    def _start_workers(self) -> None:
        """Start a worker for each waiting item that gets a slot; each runs until none waits."""
        if not self._waiting:
            return
        for _ in range(self._slots.acquire_bulk(self._waiting_count())):
            worker = asyncio.create_task(self._work())
            self._workers.add(worker)

    def _plan_preemption(self) -> None:
        if self._preemption is None:
            call_later = asyncio.get_running_loop().call_later
            self._preemption = call_later(PREEMPTION_WAIT_S, self._preempt)

    def _preempt(self) -> None:
        """Abort the newest items, one for each online call that still waits for a slot."""
        self._preemption = None
        waiting = self._slots.counts.waiting - len(self._preempted)
        for worker, (execution, index) in reversed([*self._running.items()]):
            if waiting <= 0:
                return
            is_abortable = worker not in self._preempted and not execution.done.done()
            if is_abortable and execution.preemptions[index] < PREEMPTIONS_MAX:
                execution.preemptions[index] += 1
                self._preempted.add(worker)
                worker.cancel()
                waiting -= 1
                metrics.ITEMS_PREEMPTED.inc()

    def _waiting_count(self) -> int:
        return sum(execution.waiting_count for execution in self._waiting)

    async def _work(self) -> None:
        worker = asyncio.current_task()
        assert worker is not None
        has_slot = True
        try:
            while has_slot and self._waiting:
                execution = self._waiting[0]
                index = execution.pop_index()
                if not execution.waiting_count:
                    self._waiting.popleft()
                execution.workers.add(worker)
                self._running[worker] = execution, index
                try:
                    waits_again = await self._run_item(execution, index)
                except asyncio.CancelledError:
                    if not self._is_preempted(worker, execution):
                        raise
                    self._wait_again(execution, index)
                    waits_again = True
                finally:
                    execution.workers.discard(worker)
                    del self._running[worker]
                    if worker in self._preempted:
                        self._preempted.discard(worker)
                        worker.uncancel()
                if waits_again:
                    break
                has_slot = self._slots.reacquire_bulk()
        finally:
            if has_slot:
                self._slots.release_bulk(1)
            # Not in a done callback: the next execution must see at once that a slot is free.
            self._workers.discard(worker)
            self._start_workers()  # a cancelled worker may leave items of others waiting

    def _is_preempted(self, worker: asyncio.Task[None], execution: _Execution) -> bool:
        """Whether a cancellation aborts the item alone; its execution may have ended meanwhile."""
        return worker in self._preempted and worker.cancelling() == 1 and not execution.done.done()

    async def _run_item(self, execution: _Execution, index: int) -> bool:
        """Run an item and report its answer; return whether it was refused and waits again."""
        try:
            answer = await execution.run(execution.endpoint, execution.bodies[index])
            if not execution.done.done():
                execution.finished(index, answer)
        except PoolBusyError as busy:
            return self._postpone(execution, index, busy)
        except Exception as failure:  # noqa: BLE001 - the worker goes on; the execution fails
            self._end(execution, failure)
        self._count_ended(execution)
        return False

    def _count_ended(self, execution: _Execution) -> None:
        execution.ended += 1
        if execution.ended == len(execution.bodies):
            self._end(execution, execution.busy_failure)

    def _postpone(self, execution: _Execution, index: int, busy: PoolBusyError) -> bool:
        """Pause a refused item before its next try; return False if there is none."""
        assert self._congestion is not None
        refusals = execution.refusals.setdefault(index, LoadRefusals())
        try:
            pause_s = self._congestion.record_refusal(refusals, busy)
        except PoolBusyError as too_long:
            execution.busy_failure = too_long
            self._count_ended(execution)
            return False
        except PoolUnavailableError as unavailable:
            self._end(execution, unavailable)
            return False
        if not execution.done.done():
            call_later = asyncio.get_running_loop().call_later
            execution.pauses[index] = call_later(pause_s, self._retry, execution, index)
        return True

    def _retry(self, execution: _Execution, index: int) -> None:
        del execution.pauses[index]
        self._wait_again(execution, index)
        self._start_workers()

    def _wait_again(self, execution: _Execution, index: int) -> None:
        execution.retries.append(index)
        if execution in self._waiting:
            self._waiting.remove(execution)
        self._waiting.appendleft(execution)  # ahead of items that have not been tried

    def _end(self, execution: _Execution, failure: Exception | None) -> None:
        if execution.done.done():
            return
        if failure is None:
            execution.done.set_result(None)
        else:
            execution.done.set_exception(failure)
        if execution in self._waiting:
            self._waiting.remove(execution)

    async def _cancel(self, execution: _Execution) -> None:
        """Cancel what an ended, failed or cancelled execution still runs, and wait for its end."""
        if execution in self._waiting:
            self._waiting.remove(execution)
        for pause in execution.pauses.values():
            pause.cancel()
        running = [*execution.workers]
        for worker in running:
            if not worker.cancelling():  # preempted: a second time would interrupt its clean-up
                worker.cancel()
        if running:
            await asyncio.wait(running)
