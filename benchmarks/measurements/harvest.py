"""A5: how much bulk work runs in what online calls leave of an engine, and what they notice of it.

What: one pool, a simulated GPU. Streams arrive with the gaps and lengths of Azure's conversations
and need about a third of the engine. Bulk jobs have the lengths of the same trace. Measured are the
calls alone, bulk alone, and both together. The other orders of bulk tenants (FIFO, round robin and
strict priority) differ little here, with one bulk tenant; `no headroom` leaves no slot free for
calls, so that they go first by priority alone, as with vLLM's.

How: work is the time of the full engine that tokens take. The idle capacity is what bulk does
alone, less the work of the calls that end in the same seconds. Every part of a run has the same
calls. The time to the first token begins when the call is sent on an open connection. The engine is
simulated: its prompts of calls go before those of items, and a step is longer the more sequences
there are in it, with calls and items alike.

Goal: 0.95 of the idle capacity, with a p99 of the first token of 1.10 times that alone.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from openai.types import Batch

from benchmarks.children.disciplines import DISCIPLINES, FAIR
from benchmarks.children.line_child import LineChild
from benchmarks.children.open_loop_load import OpenLoopResult, OpenLoopTask, PlannedCall
from benchmarks.data.input_files import CHAT, SEED
from benchmarks.data.published_traces import (
    AZURE_CONVERSATION,
    CONVERSATION_GAP_SHAPE,
    Lengths,
    arrival_times,
    draw_lengths,
)
from benchmarks.data.simulated_gpu import SimulatedGpu, chat_body, trace_file
from benchmarks.runs import Report, Row, Run, Setup, VoidRunError
from benchmarks.stacks.load_runs import percentiles_ms
from benchmarks.stacks.scheduling_stack import SchedulingStack, scheduling_stack
from benchmarks.stacks.stack_jobs import JobsClient

GPU = SimulatedGpu()
CALLS_PER_S = 9.0
SECONDS, QUICK_SECONDS = 60.0, 10.0
SETTLING_S, QUICK_SETTLING_S = 10.0, 5.0
BULK_ITEMS = 6_000
CALLS_MEASURED_MIN = 10
READY_S_MAX, DONE_S_MAX = 60.0, 300.0
PERCENTS = (50, 99)
NO_HEADROOM = "no headroom"


@dataclass(frozen=True, slots=True)
class Plan:
    """The calls of a run."""

    path: Path
    lengths: Sequence[Lengths]
    seconds: float


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    names = [FAIR] if setup.quick else [FAIR, NO_HEADROOM, *DISCIPLINES]
    plan = _plan(setup)
    rows: list[Row] = []
    runs: list[Run] = []
    for name in names:
        with scheduling_stack(
            setup.work / name.replace(" ", "-"),
            GPU,
            discipline=name if name in DISCIPLINES else FAIR,
            headroom=0 if name == NO_HEADROOM else None,
        ) as stack:
            run = _run(setup, stack, plan)
        setup.note(f"{name}: {run.facts}")
        runs.append(run)
        rows += _rows(name, run)
    return Report(name="harvest", rows=rows, runs=runs)


def _plan(setup: Setup) -> Plan:
    """Write the calls, the same in every part."""
    seconds = QUICK_SECONDS if setup.quick else SECONDS
    shape = CONVERSATION_GAP_SHAPE
    times = [*arrival_times(CALLS_PER_S, seconds, shape=shape, seed=SEED)]
    lengths = draw_lengths(AZURE_CONVERSATION, len(times), seed=SEED + 1)
    calls = [
        PlannedCall(at_s, msgspec.Raw(chat_body(one, number, stream=True)))
        for number, (at_s, one) in enumerate(zip(times, lengths, strict=True))
    ]
    path = setup.work / "calls.json"
    path.write_bytes(msgspec.json.encode(calls))
    return Plan(path, lengths, seconds)


def _run(setup: Setup, stack: SchedulingStack, plan: Plan) -> Run:
    """Measure the calls alone, bulk alone, and both."""
    file = trace_file(
        setup.work / "bulk.jsonl",
        draw_lengths(AZURE_CONVERSATION, setup.count(BULK_ITEMS, BULK_ITEMS), seed=SEED + 2),
    )
    client = stack.tenant()
    file_id, _ = client.upload(file.path)
    _run_calls(setup, stack, plan)  # the broker's JIT compiles hot code
    alone = _run_calls(setup, stack, plan)
    settling_s = QUICK_SETTLING_S if setup.quick else SETTLING_S
    with _bulk(stack, client, file_id, settling_s) as batch:
        since_s = stack.now_s()
        time.sleep(plan.seconds)
        bulk_alone = _work(stack, batch, since_s, plan.seconds)
        since_s = stack.now_s()
        beside = _run_calls(setup, stack, plan)
        bulk = _work(stack, batch, since_s, plan.seconds)
    online = sum(
        GPU.seconds(*plan.lengths[one.number])
        for one in beside.calls
        if one.ended_at_s <= plan.seconds
    )
    facts = {
        "bulk_alone": bulk_alone,
        "bulk": bulk,
        "online": online / plan.seconds,
        "harvest": bulk / max(1e-9, bulk_alone - online / plan.seconds),
        "calls": len(beside.calls),
        "late_s_max": max(alone.late_s_max, beside.late_s_max),
        **percentiles_ms([one.first_wait_s for one in alone.calls], PERCENTS, "alone_"),
        **percentiles_ms([one.first_wait_s for one in beside.calls], PERCENTS, "beside_"),
    }
    return Run(items=len(beside.calls), seconds=plan.seconds, cpu_s={}, facts=facts)


def _run_calls(setup: Setup, stack: SchedulingStack, plan: Plan) -> OpenLoopResult:
    """Run the calls of the plan. Raises VoidRunError when one fails."""
    server = stack.stack.server
    task = OpenLoopTask(url=server.url + CHAT, key=server.key, calls=str(plan.path))
    argument = msgspec.json.encode(task).decode()
    module = "benchmarks.children.open_loop_load"
    with closing(LineChild("calls", module, [argument], setup.work / "logs")) as child:
        child.expect("ready", READY_S_MAX)
        child.send_line("go")
        found = msgspec.json.decode(child.expect("result", DONE_S_MAX), type=OpenLoopResult)
    if found.failed or len(found.calls) < CALLS_MEASURED_MIN:
        raise VoidRunError(f"{found.failed} calls failed, {len(found.calls)} did not")
    return found


@contextmanager
def _bulk(
    stack: SchedulingStack, client: JobsClient, file_id: str, settling_s: float
) -> Iterator[Batch]:
    """Run a job for a block, from some seconds after its first row on."""
    batch = client.start(file_id)
    stack.wait_for_rows([batch])
    time.sleep(settling_s)
    yield batch
    if stack.job_seconds(batch) is not None:
        raise VoidRunError("the job ended before the calls did")
    client.cancel(batch)


def _work(stack: SchedulingStack, batch: Batch, since_s: float, seconds: float) -> float:
    """Return the engine time of a job's items, a second."""
    return stack.engine_s(stack.rows([batch], since_s, since_s + seconds)) / seconds


def _rows(name: str, run: Run) -> list[Row]:
    facts = run.facts
    is_ours = name == FAIR
    rows = [
        Row(
            metric=f"{name}: bulk of the idle capacity",
            unit="share",
            ours=facts["harvest"],
            goal="≥ 0.95" if is_ours else "",
        ),
        Row(metric=f"{name}: bulk alone, of the engine", unit="share", ours=facts["bulk_alone"]),
        Row(metric=f"{name}: calls, of the engine", unit="share", ours=facts["online"]),
    ]
    for percent in PERCENTS:
        alone, beside = facts[f"alone_p{percent}_ms"], facts[f"beside_p{percent}_ms"]
        goal = "≤ 1.1" if is_ours and percent == PERCENTS[-1] else ""
        metric = f"{name}: first token p{percent}"
        rows += [
            Row(metric=metric, unit="ms", ours=beside, peer=alone),
            Row(metric=metric, unit="× alone", ours=beside / alone, goal=goal),
        ]
    return rows
