"""Goal: a whole call that is aborted in vLLM reports its own prompt and generated tokens."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_consumers.engines.engine import EngineAnswer, UsageMeter
from gpu_consumers.engines.vllm.sequence_counts import counted_sequences, observe_sequences

NOTHING = EngineAnswer(0, b"")


class Processor:
    """vLLM's output processor: it forgets a sequence that has ended."""

    def __init__(self) -> None:
        self.request_states: dict[str, Any] = {}
        observe_sequences(self)

    def add_request(self, request: Any, parent: object = None) -> None:
        self.request_states[request.request_id] = SimpleNamespace(
            parent_req=parent,
            prompt_len=request.prompt_len,
            detokenizer=SimpleNamespace(num_output_tokens=lambda: request.generated),
        )


def sequence(request_id: str, prompt_len: int, generated: int = 0) -> Any:
    return SimpleNamespace(request_id=request_id, prompt_len=prompt_len, generated=generated)


def usage(meter: UsageMeter) -> tuple[int, int]:
    counted = meter.with_usage(NOTHING)
    return counted.input_tokens, counted.output_tokens


def test_a_running_call_reports_what_was_generated_so_far() -> None:
    processor, meter, running = Processor(), UsageMeter(), sequence("a", 5)
    with counted_sequences(meter, shares_prompt=True):
        processor.add_request(running)
        assert usage(meter) == (5, 0)
        running.generated = 7
        assert usage(meter) == (5, 7)


@pytest.mark.parametrize(("shares_prompt", "prompt_tokens"), [(True, 5), (False, 13)])
def test_ended_sequences_count_and_a_shared_prompt_counts_once(
    shares_prompt: bool, prompt_tokens: int
) -> None:
    """Two answers to one prompt, then a wave with another sequence."""
    processor, meter, parent = Processor(), UsageMeter(), object()
    with counted_sequences(meter, shares_prompt=shares_prompt):
        processor.add_request(sequence("0_a", 8 - 3 * shares_prompt, 2), parent)
        processor.add_request(sequence("1_a", 8 - 3 * shares_prompt, 3), parent)
        processor.request_states.clear()
        processor.add_request(sequence("b", 5, 4))
        assert usage(meter) == (prompt_tokens, 9)


async def test_calls_at_once_are_counted_apart_also_with_equal_ids() -> None:
    processor = Processor()
    meters = [UsageMeter(), UsageMeter()]

    async def run(meter: UsageMeter, tokens: int) -> tuple[int, int]:
        with counted_sequences(meter, shares_prompt=True):
            await asyncio.sleep(0)
            await asyncio.create_task(_add(processor, sequence("same", tokens, tokens)))
            await asyncio.sleep(0)
            return usage(meter)

    first = asyncio.create_task(run(meters[0], 1))
    second = asyncio.create_task(run(meters[1], 2))
    assert (await first, await second) == ((1, 1), (2, 2))


async def _add(processor: Processor, added: Any) -> None:
    processor.add_request(added)


def test_a_call_without_a_meter_and_one_that_has_ended_count_nothing_more() -> None:
    processor, meter = Processor(), UsageMeter()
    with counted_sequences(meter, shares_prompt=True):
        pass
    with counted_sequences(None, shares_prompt=True):
        processor.add_request(sequence("a", 5, 5))
    assert usage(meter) == (0, 0)
