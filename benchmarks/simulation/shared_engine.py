"""An engine in virtual time that online calls share with bulk items, of which there is no end.

Calls take any free slot; bulk items leave a headroom free. The newest item is aborted for a call
that has waited for a slot, and runs again from its start. Slots are given between two steps.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from benchmarks.data.published_traces import Lengths
from benchmarks.data.simulated_gpu import SLOTS, SimulatedGpu
from gpu_consumers.engines.item_pool import PREEMPTION_WAIT_S, PREEMPTIONS_MAX
from gpu_consumers.engines.simulated.engine_steps import (
    PROMPT_TOKENS_MAX,
    RunningSequence,
    StepState,
    StepTimes,
)


class BoundedBulkPrompts(StepState):
    """Steps of an engine with a bound on the prompt tokens of items, which vLLM has not.

    Prompts of calls go first, also before a prompt of an item that has begun.
    """

    def __init__(self, bulk_tokens_max: int) -> None:
        """A step computes at most `bulk_tokens_max` prompt tokens of items."""
        super().__init__()
        self._bulk_tokens_max = bulk_tokens_max
        self._done: dict[RunningSequence, int] = {}  # computed tokens of prompts

    def add(self, sequence: RunningSequence) -> None:
        """See `StepState`."""
        self.prompts.append(sequence)

    def start_step(self) -> tuple[int, int]:
        """See `StepState`."""
        left, bulk_left, number = PROMPT_TOKENS_MAX, self._bulk_tokens_max, self._decoding
        for one in sorted(self.prompts, key=lambda one: not one.is_online):
            done = self._done.pop(one, 0)
            free = left if one.is_online else min(left, bulk_left)
            taken = min(one.prompt_tokens - done, free)
            left -= taken
            bulk_left -= 0 if one.is_online else taken
            number += taken > 0
            if done + taken == one.prompt_tokens:
                self._completed.append(one)
            else:
                self._done[one] = done + taken
        self.prompts = deque(one for one in self.prompts if one in self._done)
        return number, PROMPT_TOKENS_MAX - left


@dataclass(slots=True)
class Call:
    """An online call; times are in virtual seconds."""

    at_s: float
    lengths: Lengths
    first_token_s: float | None = None
    ended_s: float | None = None


@dataclass(slots=True, kw_only=True)
class SharedEngine:
    """The engine: first `calls`, in the order of their arrival, then items of `bulk`."""

    gpu: SimulatedGpu
    calls: Sequence[Call]
    bulk: Sequence[Lengths]  # repeated without end; empty: no bulk
    headroom: int
    preempts: bool = True
    steps: StepState = field(default_factory=StepState)
    ends: list[tuple[float, Lengths]] = field(default_factory=list)  # of items
    preempted_count: int = 0
    now_s: float = 0.0
    _free: int = SLOTS
    _waiting: deque[Call] = field(default_factory=deque)
    _running: dict[RunningSequence, tuple[Lengths, int]] = field(default_factory=dict)
    """Items, the newest last, and how often each was aborted."""
    _again: deque[tuple[Lengths, int]] = field(default_factory=deque)
    _numbers: "count[int]" = field(default_factory=count)

    def run_until(self, until_s: float) -> None:
        """Run whole steps until a time."""
        times = StepTimes(*(float(value) / 1000 for value in self.gpu.env.values()))
        arriving = deque(self.calls)
        while self.now_s < until_s:
            while arriving and arriving[0].at_s <= self.now_s:
                self._waiting.append(arriving.popleft())
            self._give_slots()
            if self.steps.is_empty:
                self.now_s = arriving[0].at_s if arriving else until_s
                continue
            self.now_s += times.seconds(*self.steps.start_step())
            for sequence in self.steps.end_step():
                sequence.on_end()

    def _give_slots(self) -> None:
        if self.preempts:
            self._preempt()
        while self._waiting and self._free:
            call = self._waiting.popleft()
            self._start(call.lengths, partial(self._end_call, call), call)
        while self.bulk and self._free > self.headroom:
            if self._again:
                lengths, aborted = self._again.popleft()
            else:
                lengths, aborted = self.bulk[next(self._numbers) % len(self.bulk)], 0
            self._running[self._start(lengths, lambda: None)] = lengths, aborted

    def _preempt(self) -> None:
        late = sum(self.now_s - call.at_s >= PREEMPTION_WAIT_S for call in self._waiting)
        for sequence, (lengths, aborted) in reversed([*self._running.items()]):
            if late <= self._free:
                return
            if aborted < PREEMPTIONS_MAX:
                del self._running[sequence]
                self.steps.remove(sequence)
                self._again.append((lengths, aborted + 1))
                self._free += 1
                self.preempted_count += 1

    def _start(
        self, lengths: Lengths, end: Callable[[], None], call: Call | None = None
    ) -> RunningSequence:
        sequence = RunningSequence(lengths.prompt, lengths.output, is_online=call is not None)
        sequence.on_end = end if call else partial(self._end_item, sequence)
        if call:
            sequence.on_token = partial(self._note_token, call)
        self._free -= 1
        self.steps.add(sequence)
        return sequence

    def _note_token(self, call: Call) -> bool:
        if call.first_token_s is None:
            call.first_token_s = self.now_s
        return True

    def _end_call(self, call: Call) -> None:
        call.ended_s = self.now_s
        self._free += 1

    def _end_item(self, sequence: RunningSequence) -> None:
        self.ends.append((self.now_s, self._running.pop(sequence)[0]))
        self._free += 1
