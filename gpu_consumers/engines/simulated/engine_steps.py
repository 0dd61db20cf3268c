"""The time model of a simulated GPU: continuous batching, one step of the engine after the other.

Each step adds one token to every running sequence and computes prompts in the order of their
arrival, in chunks (chunked prefill); those of online calls go before those of items. Its time is
linear in both:

    seconds = step_s + sequence_s * sequences + prompt_token_s * prompt tokens

Source: Yu et al., "Orca" (OSDI 2022) for iterations; Agrawal et al., "Sarathi-Serve" (OSDI 2024)
for chunked prefill and the linear time of a step.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

PROMPT_TOKENS_MAX = 2048
"""Prompt tokens of one step, vLLM's default for online serving."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The parameters of the model, in seconds."""

    step_s: float
    sequence_s: float
    prompt_token_s: float

    def seconds(self, sequence_count: int, prompt_tokens: int) -> float:
        """Return the time of a step."""
        return self.step_s + self.sequence_s * sequence_count + self.prompt_token_s * prompt_tokens


@dataclass(slots=True, eq=False)
class RunningSequence:
    """A sequence in the engine; its first token comes with the step that ends its prompt."""

    prompt_tokens: int
    output_tokens: int  # 0 of answers without generated tokens
    is_online: bool = False
    on_end: Callable[[], None] = lambda: None
    on_token: Callable[[], bool] | None = None
    """Called for each token; a False ends the sequence."""

    is_removed: bool = False


@dataclass(slots=True)
class StepState:
    """The sequences of the engine between two steps. Pure."""

    prompts: deque[RunningSequence] = field(default_factory=deque)
    """Prompts that are not computed completely, in the order in which they will be."""

    _first_prompt_done: int = 0  # tokens of the first prompt that are computed
    _decoding: int = 0
    _ends: list[tuple[int, int, RunningSequence]] = field(default_factory=list)  # a heap
    _streams: list[RunningSequence] = field(default_factory=list)
    _completed: list[RunningSequence] = field(default_factory=list)  # prompts, in this step
    _number: int = 0  # of the step
    _ties: "count[int]" = field(default_factory=count)

    @property
    def is_empty(self) -> bool:
        """Whether no sequence is here."""
        return not self.prompts and not self._decoding

    def add(self, sequence: RunningSequence) -> None:
        """Add a sequence; it takes part from the next step on."""
        position = len(self.prompts)
        if sequence.is_online:
            position = 1 if self._first_prompt_done else 0
            while position < len(self.prompts) and self.prompts[position].is_online:
                position += 1
        self.prompts.insert(position, sequence)

    def remove(self, sequence: RunningSequence) -> None:
        """Remove a sequence that was aborted; idempotent, and harmless after its end."""
        if sequence.is_removed:
            return
        sequence.is_removed = True
        if sequence in self.prompts:
            if self.prompts[0] is sequence:
                self._first_prompt_done = 0
            self.prompts.remove(sequence)
        elif sequence not in self._completed:
            self._decoding -= 1

    def start_step(self) -> tuple[int, int]:
        """Begin a step; return its sequences and the prompt tokens that it computes."""
        left = PROMPT_TOKENS_MAX
        sequence_count = self._decoding
        while self.prompts and left:
            first = self.prompts[0]
            missing = first.prompt_tokens - self._first_prompt_done
            taken = min(missing, left)
            left -= taken
            sequence_count += 1
            if taken < missing:
                self._first_prompt_done += taken
                break
            self._first_prompt_done = 0
            self._completed.append(self.prompts.popleft())
        return sequence_count, PROMPT_TOKENS_MAX - left

    def end_step(self) -> list[RunningSequence]:
        """End the step; return the sequences that have ended with it."""
        self._number += 1
        for sequence in self._completed:
            if sequence.is_removed:
                continue
            last = self._number + max(0, sequence.output_tokens - 1)
            heapq.heappush(self._ends, (last, next(self._ties), sequence))
            self._decoding += 1
            if sequence.on_token is not None:
                self._streams.append(sequence)
        self._completed.clear()
        stopped = [one for one in self._streams if not one.is_removed and not _emit(one)]
        ended: list[RunningSequence] = []
        while self._ends and self._ends[0][0] <= self._number:
            ended.append(heapq.heappop(self._ends)[2])
        ended = [one for one in ended if not one.is_removed]
        for sequence in {*stopped, *ended}:
            self.remove(sequence)
        self._streams = [one for one in self._streams if not one.is_removed]
        return ended


def _emit(sequence: RunningSequence) -> bool:
    assert sequence.on_token is not None
    return sequence.on_token()


class StepScheduler:
    """Runs steps on the event loop while there are sequences."""

    def __init__(self, times: StepTimes) -> None:
        self._times = times
        self._state = StepState()
        self._is_running = False
        self._due_s = 0.0

    def add(self, sequence: RunningSequence) -> None:
        """Add a sequence."""
        self._state.add(sequence)
        if not self._is_running:
            self._is_running = True
            loop = asyncio.get_running_loop()
            self._due_s = loop.time()
            loop.call_soon(self._start_step)  # with all that are added in this iteration

    def remove(self, sequence: RunningSequence) -> None:
        """Remove a sequence that was aborted, or has ended."""
        self._state.remove(sequence)

    def _start_step(self) -> None:
        loop = asyncio.get_running_loop()
        seconds = self._times.seconds(*self._state.start_step())
        # Count from the due time, so that late timers do not make the engine slower; what is lost
        # beyond a step is not made up for.
        self._due_s = max(self._due_s, loop.time() - seconds) + seconds
        loop.call_at(self._due_s, self._end_step)

    def _end_step(self) -> None:
        for sequence in self._state.end_step():
            sequence.on_end()
        if self._state.is_empty:
            self._is_running = False
        else:
            self._start_step()
