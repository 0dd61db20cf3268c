"""Streamed replies of the simulated engine, in the shape of the OpenAI API. Pure but for `StreamScheduler`.

All streams advance together, one token a step, as the sequences of a real engine do: one timer
serves them all, and a token costs neither a task nor a timer.
"""

import asyncio
from collections import deque
from collections.abc import Iterator

from gpu_consumers.engines.engine import EmitEvent
from gpu_consumers.engines.simulated.generated_answers import usage_json
from gpu_consumers.engines.simulated.request_parsing import ReplyPlan

StreamStep = list[bytes]
"""The events of one step of one stream."""

_STREAMS_PER_TURN = 256
"""Streams advanced before other work of the loop gets its turn; about 1 ms."""


def chat_steps(chat: ReplyPlan, model: bytes, created_s: int) -> Iterator[StreamStep]:
    """Yield the chunks of a chat: roles with the first tokens, usage (if asked) with the last."""
    head = (
        b'{"id":"chatcmpl-%08x","object":"chat.completion.chunk","created":%d,"model":%b,'
        b'"choices":[' % (chat.digest, created_s, model)
    )
    roles = [
        b'%b{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,'
        b'"finish_reason":null}]%b' % (head, index, _ending(chat))
        for index in range(len(chat.choices))
    ]
    yield from _steps(chat, head, roles, (b'"delta":{"content":"', b'"}'))


def completion_steps(completion: ReplyPlan, model: bytes, created_s: int) -> Iterator[StreamStep]:
    """Yield the chunks of a legacy completion, usage (if asked) with the last tokens."""
    head = b'{"id":"cmpl-%08x","object":"text_completion","created":%d,"model":%b,"choices":[' % (
        completion.digest,
        created_s,
        model,
    )
    yield from _steps(completion, head, [], (b'"text":"', b'"'))


def _steps(
    writing: ReplyPlan, head: bytes, first: StreamStep, text_field: tuple[bytes, bytes]
) -> Iterator[StreamStep]:
    begin, end = text_field
    ending = _ending(writing)
    before = [b'%b{"index":%d,%b' % (head, index, begin) for index in range(len(writing.choices))]
    after = b'%b,"logprobs":null,"finish_reason":null}]%b' % (end, ending)
    texts = [choice.pieces() for choice in writing.choices]
    last_step = step_count(writing) - 1
    step = first
    for number in range(last_step + 1):
        for index, pieces in enumerate(texts):
            if number < len(pieces) - 1:
                step.append(before[index] + pieces[number] + after)
            elif number == len(pieces) - 1:
                finish = writing.choices[index].finish
                step.append(
                    b'%b%b%b,"logprobs":null,"finish_reason":"%b"}]%b'
                    % (before[index], pieces[number], end, finish, ending)
                )
        if number == last_step and writing.include_usage:
            usage = usage_json(writing.input_tokens, writing.output_tokens)
            step.append(b'%b],"usage":%b}' % (head, usage))
        yield step
        step = []


def step_count(writing: ReplyPlan) -> int:
    """Return how many steps the stream of `writing` has; a step is a token of every choice."""
    return max(1, *(choice.tokens for choice in writing.choices))


def token_count_after(writing: ReplyPlan, steps: int) -> int:
    """Return the tokens that were emitted by then."""
    return sum(min(steps, choice.tokens) for choice in writing.choices)


def _ending(writing: ReplyPlan) -> bytes:
    return b',"usage":null}' if writing.include_usage else b"}"


class SimulatedStream:
    """One running stream: emits a step when told to, until it has emitted them all."""

    def __init__(self, steps: Iterator[StreamStep], count: int, emit: EmitEvent) -> None:
        """Emit the first `count` steps, 1 or more."""
        self._steps, self._emit = steps, emit
        self._left = count
        self.emitted_steps = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done with the last step; cancelling it ends the stream earlier."""

    def advance(self) -> bool:
        """Emit one step; False when there is nothing more to do."""
        if self.ended.done():
            return False
        try:
            for piece in next(self._steps):
                self._emit(piece)
        except Exception as failure:  # noqa: BLE001 - the listener's; other streams go on
            self.ended.set_exception(failure)
            return False
        self._left -= 1
        self.emitted_steps += 1
        if not self._left:
            self.ended.set_result(None)
        return self._left > 0


class StreamScheduler:
    """Advances every running stream by one token each `step_s`, or in every turn if that is 0."""

    def __init__(self, step_s: float) -> None:
        """Nothing runs yet."""
        self._step_s = step_s
        self._running: list[SimulatedStream] = []
        self._round: deque[SimulatedStream] = deque()  # those that this step has not reached
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
            loop.call_at(self._began_s + self._step_s, self._begin)
        else:
            loop.call_soon(self._begin)

    def _begin(self) -> None:
        # From when it was due, so that rounded timers do not slow the pace; a step that is missed
        # as a whole is not made up for.
        now_s = asyncio.get_running_loop().time()
        self._began_s = max(self._began_s + self._step_s, now_s - self._step_s)
        self._round.extend(self._running)
        self._running.clear()
        self._turn()

    def _turn(self) -> None:
        for _ in range(min(_STREAMS_PER_TURN, len(self._round))):
            stream = self._round.popleft()
            if stream.advance():
                self._running.append(stream)
        if self._round:
            asyncio.get_running_loop().call_soon(self._turn)
        elif self._running:
            self._schedule()
        else:
            self._is_scheduled = False
