"""An engine without a model: it answers at once or after a set latency, and says so."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from core.clock import Clock
from gpu_consumers.engines.engine import EmitEvent, EngineAnswer, OnItemFinished, UsageMeter
from gpu_consumers.engines.engine_slots import EngineSlots, SlotCounts
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
from gpu_consumers.engines.simulated.request_parsing import (
    ReplyPlan,
    plan_chat,
    plan_completion,
)

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
_ITEMS_PER_TURN = 256
"""Items answered before other work of the loop gets its turn; about 0.5 ms."""


@dataclass(frozen=True, slots=True)
class StreamFailure:
    """A drill: a stream ends with `answer` after `steps` tokens, 1 or more; an item at once."""

    steps: int
    answer: EngineAnswer


InjectFault = Callable[[bytes], EngineAnswer | StreamFailure | None]
"""A drill: sees each body first; may answer it, break its stream, raise a MillraceError, or return
None."""


class SimulatedEngine:
    """Deterministic answers; `model` of each is `simulated/<model>`."""

    def __init__(
        self,
        model: str,
        *,
        latency_ms: float,
        slots: EngineSlots,
        clock: Clock,
        token_ms: float = 0.0,
        fault: InjectFault | None = None,
    ) -> None:
        """Hold an item for `latency_ms` in one of `slots`; 0 ms answers without waiting."""
        self._model = msgspec.json.encode(f"simulated/{model}")
        self._latency_s = latency_ms / 1000
        self._clock = clock
        self._fault = fault
        self._slots = slots
        self._slices = LatencySimulator(self._report, slots, self._latency_s)
        self._steps = StreamScheduler(token_ms / 1000)

    @property
    def concurrency(self) -> int:
        """See `Engine`."""
        return self._slots.total

    @property
    def headroom(self) -> int:
        """See `Engine`."""
        return self._slots.headroom

    @property
    def slots(self) -> SlotCounts:
        """See `Engine`."""
        return self._slots.counts

    async def start(self) -> None:
        """Nothing to load."""

    async def stop(self) -> None:
        """Nothing to release."""

    async def serve(
        self, endpoint: str, body: bytes, emit: EmitEvent | None, meter: UsageMeter | None = None
    ) -> EngineAnswer:
        """See `Engine`; the first token of a stream takes the latency of an item."""
        await self._slots.enter()
        try:
            if meter is not None:
                meter.began()
            if self._latency_s:
                await asyncio.sleep(self._latency_s)
            given = self._fault(body) if self._fault is not None else None
            if isinstance(given, EngineAnswer):
                return given
            streams = _STREAMS.get(endpoint)
            if emit is None or streams is None:
                return given.answer if given else self._answer(endpoint, body)
            read, written = streams
            writing = read(body)
            if isinstance(writing, EngineAnswer):
                return writing
            if not writing.stream:
                return self._answer(endpoint, body)
            count = step_count(writing) if given is None else min(given.steps, step_count(writing))
            steps = written(writing, self._model, int(self._clock.wall_s()))
            stream = SimulatedStream(steps, count, emit)
            if meter is not None:
                meter.counted = lambda answer: _counted(answer, writing, stream)
            return await self._stream(writing, stream, given)
        finally:
            self._slots.leave()

    async def execute(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnItemFinished
    ) -> None:
        """See `Engine`."""
        if self._latency_s:
            await self._slices.execute(endpoint, bodies, finished)
        else:
            await self._answer_now(endpoint, bodies, finished)

    async def _stream(
        self, writing: ReplyPlan, stream: SimulatedStream, cut: StreamFailure | None
    ) -> EngineAnswer:
        self._steps.start(stream)
        await stream.ended  # cancelling this call cancels it, which ends the stream
        return _counted(EngineAnswer(200, b"") if cut is None else cut.answer, writing, stream)

    def _answer(self, endpoint: str, body: bytes) -> EngineAnswer:
        answer = _ANSWERS.get(endpoint)
        if answer is None:
            return unknown_endpoint_answer(endpoint)
        return answer(body, self._model, int(self._clock.wall_s()))

    async def _answer_now(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnItemFinished
    ) -> None:
        """Answer in slices, without a task or a timer an item."""
        for start in range(0, len(bodies), _ITEMS_PER_TURN):
            stop = min(start + _ITEMS_PER_TURN, len(bodies))
            self._report(endpoint, bodies, finished, range(start, stop))
            await asyncio.sleep(0)

    def _report(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnItemFinished, items: range
    ) -> None:
        answer = _ANSWERS.get(endpoint)
        created_s = int(self._clock.wall_s())
        model, fault = self._model, self._fault
        for index in items:
            body = bodies[index]
            given = fault(body) if fault is not None else None
            if isinstance(given, StreamFailure):
                given = given.answer
            if given is None:
                given = (
                    unknown_endpoint_answer(endpoint)
                    if answer is None
                    else answer(body, model, created_s)
                )
            finished(index, given)


def _counted(answer: EngineAnswer, writing: ReplyPlan, stream: SimulatedStream) -> EngineAnswer:
    if not stream.emitted_steps:
        return answer
    return msgspec.structs.replace(
        answer,
        input_tokens=writing.input_tokens,
        output_tokens=token_count_after(writing, stream.emitted_steps),
    )
