"""A5 in virtual time: what of the time to the first token is the engine's, and what is ours.

What: the calls and items of `harvest`, ten minutes of them, on the simulated GPU alone, without
Kafka, roles and processes. Each row switches one rule off or changes it. The last rows bound the
prompt tokens of items in a step, and compute prompts of calls before all others. vLLM has neither:
its bound on the tokens of a prompt (`long_prefill_token_threshold`) holds for calls, too.

How: as in `harvest`; the time to the first token begins at the call's arrival, and ends with its
step. The idle capacity is what bulk does alone with the default headroom, less the work of calls.

Goal: that of `harvest`.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from benchmarks.data.input_files import SEED
from benchmarks.data.published_traces import (
    AZURE_CONVERSATION,
    CONVERSATION_GAP_SHAPE,
    Lengths,
    arrival_times,
    draw_lengths,
)
from benchmarks.data.simulated_gpu import SLOTS
from benchmarks.measurements.harvest import CALLS_PER_S, GPU, PERCENTS
from benchmarks.runs import Report, Row, Setup
from benchmarks.simulation.shared_engine import BoundedBulkPrompts, Call, SharedEngine
from benchmarks.stacks.load_runs import percentiles_ms
from gpu_consumers.engines.engine_slots import square_root_headroom
from gpu_consumers.engines.simulated.engine_steps import PROMPT_TOKENS_MAX

SECONDS, QUICK_SECONDS = 600.0, 60.0
SETTLING_S = 10.0
HEADROOM = square_root_headroom(SLOTS)
BULK_ITEMS = 20_000
BOUNDS = (PROMPT_TOKENS_MAX, 512, 384, 256, 192)


class Outcome(NamedTuple):
    """What an engine did after `SETTLING_S`: shares of its time, and the first tokens."""

    bulk: float
    online: float
    first_token_ms: dict[str, float]
    preempted: int


def measure(setup: Setup) -> Report:
    """Run the benchmark."""
    seconds = QUICK_SECONDS if setup.quick else SECONDS
    items = draw_lengths(AZURE_CONVERSATION, BULK_ITEMS, seed=SEED + 2)
    alone = run_engine(seconds, [])
    bulk_alone = run_engine(seconds, items, has_calls=False).bulk
    rows: list[Row] = []
    for name, outcome in _variants(seconds, items):
        idle = bulk_alone - outcome.online
        is_ours = name == "ours"
        goal = "≥ 0.95" if is_ours else ""
        rows.append(
            Row(
                metric=f"{name}: bulk of the idle capacity",
                unit="share",
                goal=goal,
                ours=outcome.bulk / idle,
            )
        )
        for percent in PERCENTS:
            key = f"p{percent}_ms"
            goal = "≤ 1.1" if is_ours and percent == PERCENTS[-1] else ""
            ratio = outcome.first_token_ms[key] / alone.first_token_ms[key]
            rows.append(
                Row(metric=f"{name}: first token p{percent}", unit="× alone", goal=goal, ours=ratio)
            )
        setup.note(f"{name}: {outcome.preempted} items aborted for calls")
    return Report(name="virtual_harvest", rows=rows, runs=[])


def _variants(seconds: float, items: Sequence[Lengths]) -> Iterator[tuple[str, Outcome]]:
    run = partial(run_engine, seconds, items)
    yield "ours", run()
    yield "no preemption", run(preempts=False)
    for headroom in (0, 2 * HEADROOM, 4 * HEADROOM):
        yield f"headroom {headroom}", run(headroom=headroom)
    yield "headroom 0, no preemption", run(headroom=0, preempts=False)
    for tokens in BOUNDS:
        yield f"{tokens} prompt tokens of bulk a step", run(bulk_tokens_max=tokens)


def run_engine(
    seconds: float,
    items: Sequence[Lengths],
    *,
    has_calls: bool = True,
    headroom: int = HEADROOM,
    preempts: bool = True,
    bulk_tokens_max: int | None = None,
) -> Outcome:
    """Run calls, and items without end unless there are none, for some seconds."""
    times = [*arrival_times(CALLS_PER_S, seconds, shape=CONVERSATION_GAP_SHAPE, seed=SEED)]
    lengths = draw_lengths(AZURE_CONVERSATION, len(times), seed=SEED + 1)
    calls = [Call(SETTLING_S + at_s, one) for at_s, one in zip(times, lengths, strict=True)]
    engine = SharedEngine(
        gpu=GPU,
        calls=calls if has_calls else [],
        bulk=items,
        headroom=headroom,
        preempts=preempts,
    )
    if bulk_tokens_max is not None:
        engine.steps = BoundedBulkPrompts(bulk_tokens_max)
    engine.run_until(SETTLING_S + seconds)
    bulk = sum(GPU.seconds(*one) for at_s, one in engine.ends if at_s > SETTLING_S)
    online = sum(GPU.seconds(*call.lengths) for call in calls if call.ended_s is not None)
    waits = [call.first_token_s - call.at_s for call in calls if call.first_token_s is not None]
    first_token_ms = percentiles_ms(waits, PERCENTS) if waits else {}
    return Outcome(bulk / seconds, online / seconds, first_token_ms, engine.preempted_count)
