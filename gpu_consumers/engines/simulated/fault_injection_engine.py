"""A simulated engine with injected faults, for drills of poison items and their effects.

It runs items one by one in the pool that real engines use, so it is slower than the inner engine.
"""

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final

from core.errors import EngineOutOfMemoryError
from gpu_consumers.engines.engine import (
    EmitEvent,
    EngineAnswer,
    EngineUse,
    OnAnswer,
    UsageMeter,
)
from gpu_consumers.engines.engine_failures import refusal_answer
from gpu_consumers.engines.engine_slots import EngineSlots, SlottedEngine
from gpu_consumers.engines.error_answers import error_answer, item_timeout_answer
from gpu_consumers.engines.item_pool import ItemPool
from gpu_consumers.engines.settings import SimulatedFault
from gpu_consumers.engines.simulated.simulated_engine import SimulatedEngine

_LOG = logging.getLogger(__name__)

CRASH_EXIT_CODE: Final = 139
"""What a shell reports of a segmentation fault."""

_ERROR = error_answer(
    HTTPStatus.INTERNAL_SERVER_ERROR, "A simulated fault.", code="simulated_fault"
)

_OVERFLOW = refusal_answer(
    HTTPStatus.BAD_REQUEST, "A simulated prompt above the context.", "input_tokens"
)

NAN_ANSWER = EngineAnswer(
    HTTPStatus.OK,
    b'{"id":"chatcmpl-nan","object":"chat.completion","created":0,"model":"simulated/nan",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"!","refusal":null},'
    b'"logprobs":{"content":[{"token":"!","logprob":null,"bytes":[33],"top_logprobs":'
    b'[{"token":"!","logprob":null,"bytes":[33]},{"token":"?","logprob":-9999.0,"bytes":[63]}]}]},'
    b'"finish_reason":"length"}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}',
    input_tokens=1,
    output_tokens=1,
)
"""vLLM's own response to a chat whose logits are NaN or minus infinity."""


class FaultInjectionEngine(SlottedEngine):
    """Answers as the inner engine does, except for bodies that trigger a fault."""

    def __init__(
        self,
        inner: SimulatedEngine,
        faults: Sequence[SimulatedFault],
        slots: EngineSlots,
        *,
        latency_ms: float,
        item_timeout_s: float,
    ) -> None:
        """`inner` must answer without latency, from slots of its own."""
        super().__init__(slots)
        self._inner = inner
        self._faults = [(fault.contains.encode(), fault) for fault in faults]
        self._latency_s, self._item_timeout_s = latency_ms / 1000, item_timeout_s
        self._pool = ItemPool(self._run_item, slots)

    @property
    def use(self) -> EngineUse:
        """See `ReportsUse`: a sequence in a slot takes an equal part of the simulated KV cache."""
        return EngineUse(self._slots.waiting_count, self._slots.used_share)

    async def start(self) -> None:
        """Log that faults are injected, and start as the inner engine does."""
        _LOG.warning("simulated faults are on", extra={"faults": len(self._faults)})
        await self._inner.start()

    async def execute(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer, adapter: str = ""
    ) -> None:
        """See `Engine`. Raises EngineOutOfMemoryError."""
        await self._pool.execute(
            endpoint, bodies, finished, partial(self._run_item, adapter=adapter)
        )

    async def _serve(
        self,
        endpoint: str,
        body: bytes,
        emit: EmitEvent | None,
        meter: UsageMeter | None,
        adapter: str,
    ) -> EngineAnswer:
        """Out of memory fails only the call; a fault's success never streams."""
        try:
            fault = await self._inject(body)
        except EngineOutOfMemoryError:
            return _ERROR
        if fault is not None and (emit is None or fault.is_error):
            return fault
        return await self._inner.serve(endpoint, body, emit, meter, adapter)

    async def _run_item(self, endpoint: str, body: bytes, adapter: str = "") -> EngineAnswer:
        fault = await self._inject(body)
        if fault is not None:
            return fault
        answers: list[EngineAnswer] = []
        await self._inner.execute(
            endpoint, [body], lambda _, answer: answers.append(answer), adapter
        )
        return answers[0]

    async def _inject(self, body: bytes) -> EngineAnswer | None:
        """Wait for the latency; return the answer of the body's fault, None without one."""
        try:
            async with asyncio.timeout(self._item_timeout_s):
                await asyncio.sleep(self._latency_s)
                fault = fault_of(body, self._faults)
                return None if fault is None else await _trigger(fault)
        except TimeoutError:
            return item_timeout_answer(self._item_timeout_s)


def fault_of(body: bytes, faults: Iterable[tuple[bytes, SimulatedFault]]) -> SimulatedFault | None:
    """Return the first fault that a body triggers."""
    return next((fault for contained, fault in faults if contained in body), None)


async def _trigger(fault: SimulatedFault) -> EngineAnswer | None:
    match fault.fault:
        case "crash":
            os._exit(CRASH_EXIT_CODE)
        case "hang":
            await asyncio.Event().wait()
        case "freeze":
            while True:
                time.sleep(1)  # noqa: ASYNC251 - the fault blocks the event loop
        case "oom":
            raise EngineOutOfMemoryError
        case "slow":
            await asyncio.sleep(fault.slow_s)
        case "error500":
            return _ERROR
        case "overflow":
            return _OVERFLOW
        case "nan":
            return NAN_ANSWER
    return None
