"""An engine without a model: it answers at once, after a set latency, or after simulated steps.

Its answers say that they are simulated.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from core.clock import Clock
from gpu_consumers.engines.engine import (
    EmitEvent,
    EngineAnswer,
    EngineUse,
    OnAnswer,
    UsageMeter,
)
from gpu_consumers.engines.engine_slots import EngineSlots, SlottedEngine
from gpu_consumers.engines.error_answers import (
    unknown_adapter_answer,
    unknown_endpoint_answer,
)
from gpu_consumers.engines.simulated.engine_steps import RunningSequence, StepScheduler, StepTimes
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
from gpu_consumers.engines.simulated.reply_plans import ReplyPlan, plan_chat, plan_completion
from gpu_consumers.engines.simulated.shown_model import ShownModel

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


class SimulatedEngine(SlottedEngine):
    """Deterministic answers, which name their model as `ShownModel` does."""

    def __init__(  # noqa: PLR0913  one argument for each property that is simulated
        self,
        model: str,
        *,
        latency_ms: float,
        slots: EngineSlots,
        clock: Clock,
        token_ms: float = 0.0,
        load_s: float = 0.0,
        step_times: StepTimes | None = None,
        has_adapters: bool = False,
    ) -> None:
        """Keep an item for `latency_ms` in one of `slots`; with 0 ms answer without waiting.

        `start` takes `load_s`, as if a model were loaded.

        With `step_times` an item, call or stream keeps its slot for as long as its tokens take in
        the steps of all that run; the latencies must be 0. With `has_adapters` any adapter is
        served, and its version is a part of the model that answers name.
        """
        super().__init__(slots)
        self._name, self._has_adapters = model, has_adapters
        self._shown = ShownModel(model)
        self._latency_s, self._load_s = latency_ms / 1000, load_s
        self._clock = clock
        self._steps = None if step_times is None else StepScheduler(step_times)
        self._bulk = (
            LatencySimulator(self._report, slots, self._latency_s)
            if self._steps is None
            else StepSimulator(self._report, slots, self._steps, self._answer)
        )
        self._streams = StreamScheduler(token_ms / 1000)

    async def start(self) -> None:
        """See `Engine`."""
        if self._load_s:
            await asyncio.sleep(self._load_s)

    @property
    def use(self) -> EngineUse:
        """See `ReportsUse`: a sequence in a slot takes an equal part of the simulated KV cache."""
        return EngineUse(self._slots.waiting_count, self._slots.used_share)

    @property
    def can_sleep(self) -> bool:
        """See `CanSleep`."""
        return True

    async def sleep(self) -> None:
        """Free nothing: there is no device."""

    async def wake(self) -> None:
        """Return at once."""

    def _shown_of(self, adapter: str) -> ShownModel:
        return ShownModel(self._name, adapter) if adapter else self._shown

    async def _serve(
        self,
        endpoint: str,
        body: bytes,
        emit: EmitEvent | None,
        meter: UsageMeter | None,
        adapter: str,
    ) -> EngineAnswer:
        """The first token of a stream takes the latency of an item."""
        if adapter and not self._has_adapters:
            return unknown_adapter_answer()
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        stream_functions = _STREAMS.get(endpoint)
        if emit is None or stream_functions is None:
            return await self._answer_in_time(endpoint, body, adapter)
        plan_reply, generate_steps = stream_functions
        plan = plan_reply(body)
        if isinstance(plan, EngineAnswer):
            return plan
        if not plan.stream:
            return await self._answer_in_time(endpoint, body, adapter)
        model = self._shown_of(adapter).of_body(body)
        steps = generate_steps(plan, model, int(self._clock.wall_s()))
        stream = SimulatedStream(steps, step_count(plan), emit)
        if meter is not None:
            meter.with_usage = lambda answer: _with_usage(answer, plan, stream)
        if self._steps is None:
            self._streams.start(stream)
            await stream.ended  # cancelling this call cancels it, which ends the stream
        else:
            await self._run_stream(self._steps, stream, plan)
        return _with_usage(EngineAnswer(200, b""), plan, stream)

    async def _answer_in_time(self, endpoint: str, body: bytes, adapter: str) -> EngineAnswer:
        """Answer an online call that does not stream, after the steps that it takes."""
        answer = self._answer(endpoint, body, adapter)
        if self._steps is None or answer.is_error:
            return answer
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sequence = RunningSequence(
            answer.input_tokens,
            answer.output_tokens,
            is_online=True,
            on_end=partial(_set_done, ended),
        )
        self._steps.add(sequence)
        try:
            await ended
        finally:
            self._steps.remove(sequence)
        return answer

    @staticmethod
    async def _run_stream(steps: StepScheduler, stream: SimulatedStream, plan: ReplyPlan) -> None:
        """Emit one token a step, of every choice."""
        sequence = RunningSequence(
            plan.input_tokens, step_count(plan), is_online=True, on_token=stream.advance
        )
        steps.add(sequence)
        try:
            await stream.ended
        finally:
            steps.remove(sequence)

    async def execute(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer, adapter: str = ""
    ) -> None:
        """See `Engine`."""
        if adapter and not self._has_adapters:
            for index in range(len(bodies)):
                finished(index, unknown_adapter_answer())
            return
        if self._latency_s or self._steps is not None:
            await self._bulk.execute(endpoint, bodies, finished, adapter)
        else:
            await self._answer_now(endpoint, bodies, finished, adapter)

    def _answer(self, endpoint: str, body: bytes, adapter: str) -> EngineAnswer:
        generate = _ANSWERS.get(endpoint)
        if generate is None:
            return unknown_endpoint_answer(endpoint)
        return generate(body, self._shown_of(adapter), int(self._clock.wall_s()))

    async def _answer_now(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer, adapter: str
    ) -> None:
        """Answer in slices, without a task or a timer per item."""
        for start in range(0, len(bodies), _ITEMS_PER_SLICE):
            stop = min(start + _ITEMS_PER_SLICE, len(bodies))
            self._report(endpoint, bodies, finished, adapter, range(start, stop))
            await asyncio.sleep(0)

    def _report(
        self,
        endpoint: str,
        bodies: Sequence[bytes],
        finished: OnAnswer,
        adapter: str,
        items: range,
    ) -> None:
        generate = _ANSWERS.get(endpoint)
        shown, created_s = self._shown_of(adapter), int(self._clock.wall_s())
        for index in items:
            if generate is None:
                finished(index, unknown_endpoint_answer(endpoint))
            else:
                finished(index, generate(bodies[index], shown, created_s))


def _with_usage(answer: EngineAnswer, plan: ReplyPlan, stream: SimulatedStream) -> EngineAnswer:
    if not stream.emitted_steps:
        return answer
    return msgspec.structs.replace(
        answer,
        input_tokens=plan.input_tokens,
        output_tokens=token_count_after(plan, stream.emitted_steps),
    )


ReportItems = Callable[[str, Sequence[bytes], OnAnswer, str, range], None]
"""Answers those bodies of an `execute` with an adapter that are in the range."""


@dataclass(slots=True, eq=False)
class _Call:
    endpoint: str
    bodies: Sequence[bytes]
    finished: OnAnswer
    adapter: str
    done: asyncio.Future[None]
    started: int = 0  # items before this index have a slot or have ended
    ended: int = 0
    sequences: set[RunningSequence] = field(default_factory=set)  # of items in simulated steps


class LatencySimulator:
    """Keeps items of concurrent calls in the bulk slots for the latency, oldest call first."""

    def __init__(self, report: ReportItems, slots: EngineSlots, latency_s: float) -> None:
        """`report` is called when the latency of a range of items is over."""
        self._report, self._slots, self._latency_s = report, slots, latency_s
        slots.on_bulk_available = self._fill_slots
        slots.count_waiting_bulk = self._waiting_count
        self._waiting: deque[_Call] = deque()  # calls with items that have no slot yet

    async def execute(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer, adapter: str
    ) -> None:
        """Run every body."""
        if not bodies:
            return
        done = asyncio.get_running_loop().create_future()
        call = _Call(endpoint, bodies, finished, adapter, done)
        self._waiting.append(call)
        self._fill_slots()
        try:
            await done
        finally:
            self._release(call)

    def _waiting_count(self) -> int:
        return sum(len(call.bodies) - call.started for call in self._waiting)

    def _fill_slots(self) -> None:
        """Give free slots to waiting calls, oldest first."""
        while self._waiting:
            call = self._waiting[0]
            start = call.started
            acquired = self._slots.acquire_bulk(len(call.bodies) - start)
            if not acquired:
                return
            call.started += acquired
            if call.started == len(call.bodies):
                self._waiting.popleft()
            self._start_items(call, range(start, call.started))

    def _start_items(self, call: _Call, items: range) -> None:
        """Finish the items, which have their slots, in time."""
        asyncio.get_running_loop().call_later(self._latency_s, self._finish, call, items)

    def _finish(self, call: _Call, items: range) -> None:
        if call.done.done():  # cancelled: its slots were released
            return
        self._slots.release_bulk(len(items))
        call.ended += len(items)
        self._report(call.endpoint, call.bodies, call.finished, call.adapter, items)
        if call.ended == len(call.bodies):
            call.done.set_result(None)
        self._fill_slots()

    def _release(self, call: _Call) -> None:
        """Release the slots of a call that was cancelled, or has ended."""
        self._slots.release_bulk(call.started - call.ended)
        call.ended = call.started
        if call in self._waiting:
            self._waiting.remove(call)
        self._fill_slots()


class StepSimulator(LatencySimulator):
    """Keeps items in the bulk slots for as long as their tokens take in the steps of the engine."""

    def __init__(
        self,
        report: ReportItems,
        slots: EngineSlots,
        steps: StepScheduler,
        answer: Callable[[str, bytes, str], EngineAnswer],
    ) -> None:
        """`answer` is called when an item starts, to count its tokens."""
        super().__init__(report, slots, 0.0)
        self._steps, self._answer = steps, answer

    def _start_items(self, call: _Call, items: range) -> None:
        for index in items:
            answer = self._answer(call.endpoint, call.bodies[index], call.adapter)
            sequence = RunningSequence(answer.input_tokens, answer.output_tokens)
            sequence.on_end = partial(self._end_sequence, call, index, sequence)
            call.sequences.add(sequence)
            self._steps.add(sequence)

    def _end_sequence(self, call: _Call, index: int, sequence: RunningSequence) -> None:
        call.sequences.discard(sequence)
        self._finish(call, range(index, index + 1))

    def _release(self, call: _Call) -> None:
        for sequence in call.sequences:
            self._steps.remove(sequence)
        call.sequences.clear()
        super()._release(call)


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
