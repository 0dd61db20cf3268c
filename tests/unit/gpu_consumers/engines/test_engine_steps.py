"""Goal: simulated steps take the time of a GPU: by sequences, prompt tokens and output tokens."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.engines.engine import SlotCounts
from gpu_consumers.engines.engine_slots import EngineSlots
from gpu_consumers.engines.simulated.engine_steps import (
    PROMPT_TOKENS_MAX,
    RunningSequence,
    StepState,
    StepTimes,
)
from gpu_consumers.engines.simulated.simulated_engine import SimulatedEngine
from tests.support.clock import ManualClock
from tests.support.virtual_time import VirtualTimeLoop

CHAT = "/v1/chat/completions"
LENGTHS = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 40)), min_size=1, max_size=12)


def body(tokens: int, *, stream: bool = False, prompt: str = "x") -> bytes:
    extra = b',"stream":true' if stream else b""
    message = b'{"messages":[{"role":"user","content":"%b"}],"max_tokens":%d%b}'
    return message % (prompt.encode(), tokens, extra)


def engine(times: StepTimes, concurrency: int = 8) -> SimulatedEngine:
    slots = EngineSlots(concurrency)
    return SimulatedEngine("m", latency_ms=0, slots=slots, clock=ManualClock(), step_times=times)


def seconds_of(work: Coroutine[Any, Any, Any]) -> float:
    loop = VirtualTimeLoop()
    try:
        started_s = loop.time()
        loop.run_until_complete(work)
        return loop.time() - started_s
    finally:
        loop.close()


@given(LENGTHS)
def test_each_sequence_ends_once_and_no_prompt_token_is_lost(
    lengths: list[tuple[int, int]],
) -> None:
    state, ended, prompt_tokens, sequence_steps = StepState(), [], 0, 0
    for prompt, output in lengths:
        state.add(RunningSequence(prompt, output))
    while not state.is_empty:
        sequence_count, tokens = state.start_step()
        assert tokens <= PROMPT_TOKENS_MAX
        assert 0 < sequence_count <= len(lengths)
        sequence_steps += sequence_count
        prompt_tokens += tokens
        ended += state.end_step()
    assert sorted((one.prompt_tokens, one.output_tokens) for one in ended) == sorted(lengths)
    assert prompt_tokens == sum(prompt for prompt, _ in lengths)
    assert sequence_steps >= sum(max(1, output) for _, output in lengths)


@given(LENGTHS, st.integers(0, 60), st.integers(0, 11))
def test_a_removed_sequence_leaves_no_trace(
    lengths: list[tuple[int, int]], after_steps: int, which: int
) -> None:
    state, sequences = StepState(), [RunningSequence(*one) for one in lengths]
    removed = sequences[which % len(sequences)]
    for sequence in sequences:
        state.add(sequence)
    ended: list[RunningSequence] = []
    for _ in range(after_steps):
        if not state.is_empty:
            state.start_step()
            ended += state.end_step()
    state.remove(removed)
    state.remove(removed)
    while not state.is_empty:
        state.start_step()
        ended += state.end_step()
    assert {*ended} | {removed} == {*sequences}
    assert len(ended) == len({*ended})


def test_prompts_of_online_calls_go_before_those_of_items() -> None:
    state = StepState()
    partly, item, call = (RunningSequence(3000, 1), RunningSequence(10, 1), RunningSequence(10, 1))
    call.is_online = True
    state.add(partly)
    state.add(item)
    state.start_step()
    state.end_step()
    state.add(call)
    assert [*state.prompts] == [partly, call, item]


def test_decoding_costs_a_step_for_each_token() -> None:
    times = StepTimes(step_s=1.0, sequence_s=0.5, prompt_token_s=0.0)
    assert seconds_of(engine(times).execute(CHAT, [body(10)], lambda *_: None)) == pytest.approx(
        10 * 1.5
    )
    assert seconds_of(
        engine(times).execute(CHAT, [body(10)] * 4, lambda *_: None)
    ) == pytest.approx(10 * 3.0)


def test_items_wait_for_slots_and_prompts_cost_their_tokens() -> None:
    times = StepTimes(step_s=1.0, sequence_s=0.0, prompt_token_s=0.1)
    one = body(1)
    assert seconds_of(
        engine(times, concurrency=2).execute(CHAT, [one] * 4, lambda *_: None)
    ) == pytest.approx(2 * (1.0 + 2 * 0.1 * (len(one) // 4)))


def test_a_stream_gets_a_token_in_each_step() -> None:
    times: list[float] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        one = engine(StepTimes(step_s=1.0, sequence_s=0.0, prompt_token_s=0.0))
        answer = await one.serve(
            CHAT, body(3, stream=True), lambda _: times.append(round(loop.time()))
        )
        assert answer.output_tokens == 3
        assert one.slots == SlotCounts(bulk=0, online=0, waiting=0)

    seconds = seconds_of(run())
    assert seconds == pytest.approx(3.0)
    assert [time_s - times[0] for time_s in times] == [0, 0, 1, 2]  # the roles come first


def test_a_cancelled_execution_leaves_its_slots_and_the_engine() -> None:
    async def run() -> None:
        one = engine(StepTimes(step_s=1.0, sequence_s=1.0, prompt_token_s=0.0))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.execute(CHAT, [body(100)] * 20, lambda *_: None), 5)
        assert one.slots == SlotCounts(bulk=0, online=0, waiting=0)
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        await one.execute(CHAT, [body(10)], lambda *_: None)
        # The step that was running ends first, with the time of its eight sequences.
        assert loop.time() - started_s < 9 + 10 * 2

    seconds_of(run())
