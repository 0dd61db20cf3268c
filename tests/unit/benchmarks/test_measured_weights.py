"""Goal: a replica measures what output tokens cost a GPU with the lengths of published traces."""

import asyncio

import pytest

from benchmarks.data.published_traces import AZURE_CODE, AZURE_CONVERSATION, draw_lengths
from benchmarks.data.simulated_gpu import SLOTS, SimulatedGpu, chat_body
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.engine_slots import EngineSlots
from gpu_consumers.engines.simulated.engine_steps import StepTimes
from gpu_consumers.engines.simulated.simulated_engine import SimulatedEngine
from gpu_consumers.flow_control.compute_rates import ComputeRates
from gpu_consumers.flow_control.grants import MeasuredRate
from tests.support.clock import ManualClock
from tests.support.virtual_time import run_in_virtual_time

CHAT = "/v1/chat/completions"
ITEMS, ROUND_S = 2_000, 0.2


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_weight_of_output_is_never_far_from_the_truth(seed: int) -> None:
    gpu = SimulatedGpu(speed=2)
    times = StepTimes(0.002, 0.00001, 0.000008)
    true_weight = gpu.output_token_s / gpu.prompt_token_s
    pairs = zip(
        draw_lengths(AZURE_CONVERSATION, ITEMS // 2, seed=seed),
        draw_lengths(AZURE_CODE, ITEMS // 2, seed=seed + 10),
        strict=True,
    )
    bodies = [chat_body(one, number) for number, pair in enumerate(pairs) for one in pair]
    weights: list[float] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        rates, rate = ComputeRates(), MeasuredRate()

        def record(_: int, answer: EngineAnswer) -> None:
            rates.add_tokens(CHAT, answer.input_tokens, answer.output_tokens)
            rate.add_answered(1)

        slots = EngineSlots(SLOTS)
        engine = SimulatedEngine(
            "m", latency_ms=0, slots=slots, clock=ManualClock(), step_times=times
        )
        work = asyncio.ensure_future(engine.execute(CHAT, bodies, record))
        rate.mark_busy(SLOTS, now_s=loop.time())
        while not work.done():
            await asyncio.sleep(ROUND_S)
            closed = rate.update(SLOTS, concurrency=SLOTS, now_s=loop.time())
            if closed is not None:
                rates.close_window(closed.busy_s, was_full=closed.was_full)
                weights.append(rates.output_weight(CHAT))

    run_in_virtual_time(run())
    assert len(weights) > 15
    assert min(weights) > true_weight / 4
    assert max(weights) < true_weight * 4
