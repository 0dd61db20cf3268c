"""Streamed replies of the simulated engine, in the shape of the OpenAI API.

Generation is pure. All streams advance together, one token a step, like the sequences of a real
engine: one timer serves them all, and a token costs neither a task nor a timer.
"""

import asyncio
from collections import deque
from collections.abc import Iterator

from gpu_consumers.engines.engine import EmitEvent
from gpu_consumers.engines.simulated.generated_answers import usage_json
from gpu_consumers.engines.simulated.reply_plans import ReplyPlan

StreamStep = list[bytes]
"""The events of one step of one stream."""

_STREAMS_PER_SLICE = 256
"""Streams advanced before the loop runs other work; about 1 ms."""


def chat_steps(plan: ReplyPlan, model: bytes, created_s: int) -> Iterator[StreamStep]:
    """Yield the chunks of a chat: roles with the first tokens, usage (if asked) with the last."""
    head = (
        b'{"id":"chatcmpl-%08x","object":"chat.completion.chunk","created":%d,"model":%b,'
        b'"choices":[' % (plan.digest, created_s, model)
    )
    roles = [
        b'%b{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,'
        b'"finish_reason":null}]%b' % (head, index, _chunk_end(plan))
        for index in range(len(plan.choices))
    ]
    yield from _steps(plan, head, roles, (b'"delta":{"content":"', b'"}'))


def completion_steps(plan: ReplyPlan, model: bytes, created_s: int) -> Iterator[StreamStep]:
    """Yield the chunks of a legacy completion, usage (if asked) with the last tokens."""
    head = b'{"id":"cmpl-%08x","object":"text_completion","created":%d,"model":%b,"choices":[' % (
        plan.digest,
        created_s,
        model,
    )
    yield from _steps(plan, head, [], (b'"text":"', b'"'))


def _steps(
    plan: ReplyPlan, head: bytes, first: StreamStep, text_field: tuple[bytes, bytes]
) -> Iterator[StreamStep]:
    field_start, field_end = text_field
    chunk_end = _chunk_end(plan)
    before = [
        b'%b{"index":%d,%b' % (head, index, field_start) for index in range(len(plan.choices))
    ]
    after = b'%b,"logprobs":null,"finish_reason":null}]%b' % (field_end, chunk_end)
    texts = [choice.pieces() for choice in plan.choices]
    last_step = step_count(plan) - 1
    step = first
    for number in range(last_step + 1):
        for index, pieces in enumerate(texts):
            if number < len(pieces) - 1:
                step.append(before[index] + pieces[number] + after)
            elif number == len(pieces) - 1:
                finish = plan.choices[index].finish
                step.append(
                    b'%b%b%b,"logprobs":null,"finish_reason":"%b"}]%b'
                    % (before[index], pieces[number], field_end, finish, chunk_end)
                )
        if number == last_step and plan.include_usage:
            usage = usage_json(plan.input_tokens, plan.output_tokens)
            step.append(b'%b],"usage":%b}' % (head, usage))
        yield step
        step = []


def step_count(plan: ReplyPlan) -> int:
    """Return the number of steps of a stream; a step is one token of every choice."""
    return max(1, *(choice.tokens for choice in plan.choices))


def token_count_after(plan: ReplyPlan, steps: int) -> int:
    """Return the tokens emitted after so many steps."""
    return sum(min(steps, choice.tokens) for choice in plan.choices)


def _chunk_end(plan: ReplyPlan) -> bytes:
    return b',"usage":null}' if plan.include_usage else b"}"


class SimulatedStream:
    """One running stream, advanced by a `StreamScheduler`."""

    def __init__(self, steps: Iterator[StreamStep], count: int, emit: EmitEvent) -> None:
        """Emit the first `count` steps, 1 or more."""
        self._steps, self._emit = steps, emit
        self._left = count
        self.emitted_steps = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done after the last step; cancelling it ends the stream early."""

    def advance(self) -> bool:
        """Emit one step; return False if no step is left."""
        if self.ended.done():
            return False
        try:
            for event in next(self._steps):
                self._emit(event)
        except Exception as failure:  # noqa: BLE001 - it fails this stream; others go on
            self.ended.set_exception(failure)
            return False
        self._left -= 1
        self.emitted_steps += 1
        if not self._left:
            self.ended.set_result(None)
        return self._left > 0


class StreamScheduler:
    """Advances every stream by one token each `step_s`; 0 is one per iteration of the loop."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._running: list[SimulatedStream] = []
        self._pending: deque[SimulatedStream] = deque()  # not yet advanced in this step
        self._began_s = 0.0
        self._is_scheduled = False

    def start(self, stream: SimulatedStream) -> None:
        """Emit the first step now and the others in time."""
        if not stream.advance():
            return
        self._running.append(stream)
        if not self._is_scheduled:
            self._began_s = asyncio.get_running_loop().time()
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        loop = asyncio.get_running_loop()
        if self._step_s:
            loop.call_at(self._began_s + self._step_s, self._start_step)
        else:
            loop.call_soon(self._start_step)

    def _start_step(self) -> None:
        # Count from the due time, so that late timers do not slow the pace; a step that is missed
        # completely is not made up for.
        now_s = asyncio.get_running_loop().time()
        self._began_s = max(self._began_s + self._step_s, now_s - self._step_s)
        self._pending.extend(self._running)
        self._running.clear()
        self._advance_slice()

    def _advance_slice(self) -> None:
        for _ in range(min(_STREAMS_PER_SLICE, len(self._pending))):
            stream = self._pending.popleft()
            if stream.advance():
                self._running.append(stream)
        if self._pending:
            asyncio.get_running_loop().call_soon(self._advance_slice)
        elif self._running:
            self._schedule()
        else:
            self._is_scheduled = False
