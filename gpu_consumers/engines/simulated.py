"""An engine without a model: it answers at once or after a set latency, and says so."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from core.clock import Clock
from core.errors import MillraceError
from gpu_consumers.engines.engine import Answer, Finished
from gpu_consumers.engines.error_answers import unknown_endpoint
from gpu_consumers.engines.simulated_answers import (
    chat_answer,
    completion_answer,
    embeddings_answer,
)

_ANSWERS = {
    "/v1/chat/completions": chat_answer,
    "/v1/completions": completion_answer,
    "/v1/embeddings": embeddings_answer,
}
_ITEMS_PER_TURN = 256
"""Items answered before other work of the loop gets its turn; about 0.5 ms."""

Fault = Callable[[bytes], Answer | None]
"""A drill: sees each body first; may answer it, raise a MillraceError, or return None."""


@dataclass(slots=True, eq=False)
class _Call:
    """One `execute` that waits for its items."""

    endpoint: str
    bodies: Sequence[bytes]
    finished: Finished
    done: asyncio.Future[None]
    started: int = 0  # items before this index have been given a slot
    ended: int = 0


class SimulatedEngine:
    """Deterministic answers; `model` of each is `simulated/<model>`."""

    def __init__(
        self,
        model: str,
        *,
        latency_ms: float,
        concurrency: int,
        clock: Clock,
        fault: Fault | None = None,
    ) -> None:
        """Hold `concurrency` items for `latency_ms` each; 0 ms answers without waiting."""
        self._model = msgspec.json.encode(f"simulated/{model}")
        self._latency_s = latency_ms / 1000
        self._concurrency = concurrency
        self._clock = clock
        self._fault = fault
        self._free_slots = concurrency
        self._waiting: deque[_Call] = deque()  # calls with items that have no slot yet

    @property
    def concurrency(self) -> int:
        """See `Engine`."""
        return self._concurrency

    async def start(self) -> None:
        """Nothing to load."""

    async def stop(self) -> None:
        """Nothing to release."""

    async def execute(self, endpoint: str, bodies: Sequence[bytes], finished: Finished) -> None:
        """See `Engine`."""
        if not self._latency_s:
            await self._answer_now(endpoint, bodies, finished)
            return
        if not bodies:
            return
        done = asyncio.get_running_loop().create_future()
        call = _Call(endpoint, bodies, finished, done)
        self._waiting.append(call)
        self._fill_slots()
        try:
            await done
        finally:
            self._leave(call)

    async def _answer_now(self, endpoint: str, bodies: Sequence[bytes], finished: Finished) -> None:
        """Answer in slices, without a task or a timer an item."""
        for start in range(0, len(bodies), _ITEMS_PER_TURN):
            stop = min(start + _ITEMS_PER_TURN, len(bodies))
            self._report(endpoint, bodies, finished, range(start, stop))
            await asyncio.sleep(0)

    def _report(
        self, endpoint: str, bodies: Sequence[bytes], finished: Finished, items: range
    ) -> None:
        answer = _ANSWERS.get(endpoint)
        created_s = int(self._clock.wall_s())
        model, fault = self._model, self._fault
        for index in items:
            body = bodies[index]
            given = fault(body) if fault is not None else None
            if given is None:
                given = (
                    unknown_endpoint(endpoint) if answer is None else answer(body, model, created_s)
                )
            finished(index, given)

    def _fill_slots(self) -> None:
        """Give free slots to waiting calls, oldest first; one timer serves a whole slice."""
        loop = asyncio.get_running_loop()
        while self._free_slots and self._waiting:
            call = self._waiting[0]
            start = call.started
            call.started = min(start + self._free_slots, len(call.bodies))
            self._free_slots -= call.started - start
            if call.started == len(call.bodies):
                self._waiting.popleft()
            loop.call_later(self._latency_s, self._end_slice, call, range(start, call.started))

    def _end_slice(self, call: _Call, items: range) -> None:
        if call.done.done():  # cancelled or failed: its slots are free already
            return
        self._free_slots += len(items)
        call.ended += len(items)
        try:
            self._report(call.endpoint, call.bodies, call.finished, items)
        except MillraceError as failure:  # a drill's; it belongs to the call, not to the timer
            call.done.set_exception(failure)
        else:
            if call.ended == len(call.bodies):
                call.done.set_result(None)
        self._fill_slots()

    def _leave(self, call: _Call) -> None:
        """Free what a cancelled or failed call still holds."""
        self._free_slots += call.started - call.ended
        call.ended = call.started
        if call in self._waiting:
            self._waiting.remove(call)
        self._fill_slots()
