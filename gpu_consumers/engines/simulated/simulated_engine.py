"""An engine without a model: it answers at once or after a set latency. Its answers say so."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from core.clock import Clock
from gpu_consumers.engines.engine import EmitEvent, EngineAnswer, OnAnswer, UsageMeter
from gpu_consumers.engines.engine_slots import EngineSlots, SlottedEngine
from gpu_consumers.engines.error_answers import unknown_endpoint_answer
from gpu_consumers.engines.simulated.generated_answers import (
    chat_answer,
    completion_answer,
    embeddings_answer,
)
from gpu_consumers.engines.simulated.generated_scores import (
    classify_answer,
    rerank_answer,
    score_answer,
)
from gpu_consumers.engines.simulated.generated_streams import (
    SimulatedStream,
    StreamScheduler,
    StreamStep,
    chat_steps,
    completion_steps,
    step_count,
    token_count_after,
)
from gpu_consumers.engines.simulated.latency_simulator import LatencySimulator
from gpu_consumers.engines.simulated.request_parsing import ReplyPlan, plan_chat, plan_completion

_ANSWERS = {
    "/v1/chat/completions": chat_answer,
    "/v1/completions": completion_answer,
    "/v1/embeddings": embeddings_answer,
    "/v1/score": score_answer,
    "/v1/rerank": rerank_answer,
    "/v1/classify": classify_answer,
}
_STREAMS: dict[
    str,
    tuple[
        Callable[[bytes], ReplyPlan | EngineAnswer],
        Callable[[ReplyPlan, bytes, int], Iterator[StreamStep]],
    ],
] = {
    "/v1/chat/completions": (plan_chat, chat_steps),
    "/v1/completions": (plan_completion, completion_steps),
}
_ITEMS_PER_SLICE = 256
"""Items answered before the loop runs other work; about 0.5 ms."""


@dataclass(frozen=True, slots=True)
class StreamFailure:
    """An injected failure: a stream ends with `answer` after `steps` tokens, an item at once."""

    steps: int  # 1 or more
    answer: EngineAnswer


InjectFault = Callable[[bytes], EngineAnswer | StreamFailure | None]
"""Called with each body first; may answer it, fail its stream, raise a MillraceError, or return
None."""


class SimulatedEngine(SlottedEngine):
    """Deterministic answers; the `model` of each is `simulated/<model>`."""

    def __init__(
        self,
        model: str,
        *,
        latency_ms: float,
        slots: EngineSlots,
        clock: Clock,
        token_ms: float = 0.0,
        inject_fault: InjectFault | None = None,
    ) -> None:
        """Keep an item for `latency_ms` in one of `slots`; with 0 ms answer without waiting."""
        super().__init__(slots)
        self._model = msgspec.json.encode(f"simulated/{model}")
        self._latency_s = latency_ms / 1000
        self._clock = clock
        self._inject_fault = inject_fault
        self._latency = LatencySimulator(self._report, slots, self._latency_s)
        self._streams = StreamScheduler(token_ms / 1000)

    async def start(self) -> None:
        """Nothing to load."""

    async def stop(self) -> None:
        """Nothing to release."""

    async def serve(
        self, endpoint: str, body: bytes, emit: EmitEvent | None, meter: UsageMeter | None = None
    ) -> EngineAnswer:
        """See `Engine`; the first token of a stream takes the latency of an item."""
        await self._slots.acquire_online()
        try:
            if meter is not None:
                meter.on_start()
            if self._latency_s:
                await asyncio.sleep(self._latency_s)
            fault = self._inject_fault(body) if self._inject_fault is not None else None
            if isinstance(fault, EngineAnswer):
                return fault
            stream_functions = _STREAMS.get(endpoint)
            if emit is None or stream_functions is None:
                return fault.answer if fault else self._answer(endpoint, body)
            plan_reply, generate_steps = stream_functions
            plan = plan_reply(body)
            if isinstance(plan, EngineAnswer):
                return plan
            if not plan.stream:
                return self._answer(endpoint, body)
            count = step_count(plan) if fault is None else min(fault.steps, step_count(plan))
            steps = generate_steps(plan, self._model, int(self._clock.wall_s()))
            stream = SimulatedStream(steps, count, emit)
            if meter is not None:
                meter.with_usage = lambda answer: _with_usage(answer, plan, stream)
            self._streams.start(stream)
            await stream.ended  # cancelling this call cancels it, which ends the stream
            answer = EngineAnswer(200, b"") if fault is None else fault.answer
            return _with_usage(answer, plan, stream)
        finally:
            self._slots.release_online()

    async def execute(self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer) -> None:
        """See `Engine`."""
        if self._latency_s:
            await self._latency.execute(endpoint, bodies, finished)
        else:
            await self._answer_now(endpoint, bodies, finished)

    def _answer(self, endpoint: str, body: bytes) -> EngineAnswer:
        generate = _ANSWERS.get(endpoint)
        if generate is None:
            return unknown_endpoint_answer(endpoint)
        return generate(body, self._model, int(self._clock.wall_s()))

    async def _answer_now(self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer) -> None:
        """Answer in slices, without a task or a timer per item."""
        for start in range(0, len(bodies), _ITEMS_PER_SLICE):
            stop = min(start + _ITEMS_PER_SLICE, len(bodies))
            self._report(endpoint, bodies, finished, range(start, stop))
            await asyncio.sleep(0)

    def _report(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer, items: range
    ) -> None:
        generate = _ANSWERS.get(endpoint)
        created_s = int(self._clock.wall_s())
        model, inject_fault = self._model, self._inject_fault
        for index in items:
            body = bodies[index]
            answer = inject_fault(body) if inject_fault is not None else None
            if isinstance(answer, StreamFailure):
                answer = answer.answer
            if answer is None:
                answer = (
                    unknown_endpoint_answer(endpoint)
                    if generate is None
                    else generate(body, model, created_s)
                )
            finished(index, answer)


def _with_usage(answer: EngineAnswer, plan: ReplyPlan, stream: SimulatedStream) -> EngineAnswer:
    if not stream.emitted_steps:
        return answer
    return msgspec.structs.replace(
        answer,
        input_tokens=plan.input_tokens,
        output_tokens=token_count_after(plan, stream.emitted_steps),
    )
