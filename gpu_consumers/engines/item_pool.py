"""A bounded number of workers that take items from all calls, oldest call first.

A worker lives for a burst of items, so an item costs no task, no semaphore and no timer of its own.
Between two items it gives its place to an online call that waits for one. An item that a busy
upstream refused gives up its place, and is the first to have one again after its pause.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from core.errors import PoolBusyError, PoolUnavailableError
from gpu_consumers.engines.engine import EngineAnswer, OnItemFinished
from gpu_consumers.engines.engine_slots import EngineSlots
from gpu_consumers.engines.openai_http.congestion_window import CongestionWindow, LoadRefusals

RunItem = Callable[[str, bytes], Awaitable[EngineAnswer]]
"""Runs one body against an endpoint. What it raises ends the whole call."""


@dataclass(slots=True, eq=False)
class _Call:
    endpoint: str
    bodies: Sequence[bytes]
    finished: OnItemFinished
    done: asyncio.Future[None]
    started: int = 0
    ended: int = 0
    workers: set[asyncio.Task[None]] = field(default_factory=set)  # those on its items now
    again: deque[int] = field(default_factory=deque)  # started and refused, with their pause over
    pauses: dict[int, asyncio.TimerHandle] = field(default_factory=dict)
    refusals: dict[int, LoadRefusals] = field(default_factory=dict)
    left_out: PoolBusyError | None = None  # an item was refused for too long

    @property
    def waiting_count(self) -> int:
        return len(self.bodies) - self.started + len(self.again)

    def take(self) -> int:
        """Return the next item; one waits."""
        if self.again:
            return self.again.popleft()
        self.started += 1
        return self.started - 1


class ItemPool:
    """Runs the items of any number of concurrent calls in the places for bulk."""

    def __init__(
        self, run: RunItem, slots: EngineSlots, congestion: CongestionWindow | None = None
    ) -> None:
        """`run` is called for each item. The pool is the only one on `slots`.

        Without `congestion` no item is refused.
        """
        self._run = run
        self._slots = slots
        self._congestion = congestion
        slots.on_bulk_room, slots.bulk_waiting = self._hire, self._waiting_count
        self._waiting: deque[_Call] = deque()  # calls with items not yet started
        self._workers: set[asyncio.Task[None]] = set()  # the loop holds them weakly

    async def execute(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnItemFinished
    ) -> None:
        """Run every body; raise what the first failing item raised, the others cancelled.

        A PoolBusyError comes at the end: the item that was refused for too long has no answer.
        """
        if not bodies:
            return
        loop = asyncio.get_running_loop()
        call = _Call(endpoint, bodies, finished, loop.create_future())
        self._waiting.append(call)
        self._hire()
        try:
            await call.done
        finally:
            await self._leave(call)

    def _hire(self) -> None:
        """Start a worker for each waiting item that has a place; each works until none waits."""
        if not self._waiting:
            return
        for _ in range(self._slots.take_bulk(self._waiting_count())):
            worker = asyncio.create_task(self._work())
            self._workers.add(worker)

    def _waiting_count(self) -> int:
        return sum(call.waiting_count for call in self._waiting)

    async def _work(self) -> None:
        worker = asyncio.current_task()
        assert worker is not None
        has_place = True
        try:
            while has_place and self._waiting:
                call = self._waiting[0]
                index = call.take()
                if not call.waiting_count:
                    self._waiting.popleft()
                call.workers.add(worker)
                try:
                    is_refused = await self._run_item(call, index)
                finally:
                    call.workers.discard(worker)
                if is_refused:
                    break
                has_place = self._slots.renew_bulk()
        finally:
            if has_place:
                self._slots.give_bulk(1)
            # Here and not in a callback: the next call must see at once that a place is free.
            self._workers.discard(worker)
            self._hire()  # a worker that was cancelled leaves items of others behind

    async def _run_item(self, call: _Call, index: int) -> bool:
        """Run it and report it; return whether it was refused, and waits once more."""
        try:
            answer = await self._run(call.endpoint, call.bodies[index])
            if not call.done.done():
                call.finished(index, answer)
        except PoolBusyError as busy:
            return self._put_off(call, index, busy)
        except Exception as failure:  # noqa: BLE001 - a worker's loop; it belongs to the call
            self._end(call, failure)
        self._one_ended(call)
        return False

    def _one_ended(self, call: _Call) -> None:
        call.ended += 1
        if call.ended == len(call.bodies):
            self._end(call, call.left_out)

    def _put_off(self, call: _Call, index: int, busy: PoolBusyError) -> bool:
        """Let an item wait for its next try; return False when there is none."""
        assert self._congestion is not None
        refusals = call.refusals.setdefault(index, LoadRefusals())
        try:
            pause_s = self._congestion.refused(refusals, busy)
        except PoolBusyError as too_long:
            call.left_out = too_long
            self._one_ended(call)
            return False
        except PoolUnavailableError as away:
            self._end(call, away)
            return False
        if not call.done.done():
            later = asyncio.get_running_loop().call_later
            call.pauses[index] = later(pause_s, self._again, call, index)
        return True

    def _again(self, call: _Call, index: int) -> None:
        del call.pauses[index]
        call.again.append(index)
        if call in self._waiting:
            self._waiting.remove(call)
        self._waiting.appendleft(call)  # before what has not been tried
        self._hire()

    def _end(self, call: _Call, failure: Exception | None) -> None:
        if call.done.done():
            return
        if failure is None:
            call.done.set_result(None)
        else:
            call.done.set_exception(failure)
        if call in self._waiting:
            self._waiting.remove(call)

    async def _leave(self, call: _Call) -> None:
        """Stop what a failed or cancelled call still runs, and wait until it has stopped."""
        if call in self._waiting:
            self._waiting.remove(call)
        for pause in call.pauses.values():
            pause.cancel()
        running = [*call.workers]
        for worker in running:
            worker.cancel()
        if running:
            await asyncio.wait(running)
