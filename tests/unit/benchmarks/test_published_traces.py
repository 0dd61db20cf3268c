"""Goal: drawn lengths and gaps have the published distributions, and a seed repeats them."""

import statistics
from itertools import pairwise

import pytest

from benchmarks.data.published_traces import (
    AZURE_CODE,
    AZURE_CONVERSATION,
    BURST_GAP_SHAPE,
    CONVERSATION_GAP_SHAPE,
    LEVELS,
    Trace,
    arrival_times,
    draw_lengths,
    quantile,
)
from benchmarks.data.simulated_gpu import SLOTS, SimulatedGpu, chat_body
from gpu_consumers.engines.simulated.generated_answers import chat_answer
from gpu_consumers.engines.simulated.shown_model import ShownModel


@pytest.mark.parametrize("trace", [AZURE_CODE, AZURE_CONVERSATION])
def test_quantiles_are_the_published_ones(trace: Trace) -> None:
    for values in (trace.prompt, trace.output):
        assert [round(quantile(values, level)) for level in LEVELS] == [*values]


@pytest.mark.parametrize(
    ("trace", "prompt", "output"), [(AZURE_CODE, 2048, 27.9), (AZURE_CONVERSATION, 1155, 211)]
)
def test_means_are_near_the_published_ones(trace: Trace, prompt: float, output: float) -> None:
    drawn = draw_lengths(trace, 20_000, seed=1)
    assert statistics.mean(one.prompt for one in drawn) == pytest.approx(prompt, rel=0.12)
    assert statistics.mean(one.output for one in drawn) == pytest.approx(output, rel=0.2)
    assert drawn == draw_lengths(trace, 20_000, seed=1) != draw_lengths(trace, 20_000, seed=2)


@pytest.mark.parametrize("shape", [CONVERSATION_GAP_SHAPE, BURST_GAP_SHAPE])
def test_gaps_have_the_rate_and_the_variation_of_their_shape(shape: float) -> None:
    times = [*arrival_times(10, 2_000, shape=shape, seed=3)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(times) == pytest.approx(20_000, rel=0.05)
    assert times == sorted(times)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(shape**-0.5, rel=0.05)


def test_bodies_have_the_drawn_tokens() -> None:
    for number, lengths in enumerate(draw_lengths(AZURE_CONVERSATION, 50, seed=4)):
        answer = chat_answer(chat_body(lengths, number), ShownModel("m"), 0)
        assert answer.output_tokens == lengths.output
        # A body without text has some tokens, too.
        assert answer.input_tokens == lengths.prompt or lengths.prompt < 25


def test_a_full_engine_does_a_second_of_work_in_a_second() -> None:
    gpu = SimulatedGpu(speed=2)
    step_s = (4 + 0.02 * SLOTS) / 2 / 1000
    assert gpu.seconds(0, SLOTS) == pytest.approx(step_s)
