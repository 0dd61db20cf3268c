"""Replica-seconds of the autoscaler and of KEDA on lag, on the same trace of ten minutes.

What: one pool of at most 12 simulated replicas (200 ms × 8, 20 s to load) begins at zero. Online
calls rise to 60/s for 40 s, a job of 12,000 items that is due in 250 s follows, and no call comes
after 4 minutes. A turn ends when the pool is at zero again.

How: our role and its actuator `embedded`, then an emulation of KEDA on lag with its HPA
(`benchmarks.scaling.keda_emulation`), which orders replicas through the same socket while the role
is paused; each on a stack of its own. KEDA reads the lag of a topic with one message for each call
and item of the pool. Its threshold, polling, window and cooldown are the cheapest of a grid that
keep the deadline and the service level on a model of the trace, which it so knows beforehand; our
policy only has a window and an idle time as short. Rows of the model say what KEDA needs there with
its default windows, and with a trigger each for calls and items. Replica-seconds are those of
processes, sampled twice a second. Clients try again when they are refused.

Goal: at most 0.6 of KEDA's replica-seconds at no worse service level, back to zero, and no call or
item lost or answered twice.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from autoscaler.policies.pool_policy import PolicyMode
from benchmarks.data.input_files import short_file
from benchmarks.runs import Report, Row, Run, Setup, VoidRunError
from benchmarks.scaling.keda_emulation import KedaSettings
from benchmarks.scaling.keda_tuning import ModelResult, best_settings, candidates
from benchmarks.scaling.live_run import GPU_TYPE, MODEL, POOL, LiveTurn, run_turn
from benchmarks.scaling.trace import TRACE_S, Trace, scaled_trace
from benchmarks.stacks.load_runs import percentiles_ms
from benchmarks.stacks.stack import running_stack
from benchmarks.stacks.stack_jobs import JobsClient

REPLICAS_MAX = 12
LOAD_S, START_S = 20.0, 25.0
SLO_S = 2.0
QUICK_S = 60.0
LATENCY_MS, CONCURRENCY = 200, 8
TOKENS_PER_S = 880.0
"""Of a replica at 40 calls/s of 22 tokens each."""

OPTIONS = (
    *("--simulated-latency-ms", str(LATENCY_MS)),
    *("--simulated-concurrency", str(CONCURRENCY)),
)


@dataclass(frozen=True, slots=True)
class _Peer:
    name: str
    keda: KedaSettings | None  # None: our role decides


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    trace = scaled_trace(setup.seconds or (QUICK_S if setup.quick else TRACE_S))
    file = short_file(setup.work, trace.job_items, model=MODEL)
    models = _models(trace)
    for name, found in models.items():
        setup.note(f"{name}, on the model: {found}")
    tuned = _Peer("KEDA", models[_TUNED].settings)
    runs = [_turn(setup, trace, file, peer) for peer in (_Peer("ours", None), tuned)]
    return Report(name="scaling_live", rows=_rows(models, *runs), runs=runs)


_TUNED = "one trigger, tuned"


def _models(trace: Trace) -> dict[str, ModelResult]:
    """Return the best settings of KEDA on the model: all tuned, and as named."""
    one, two = (candidates(count, REPLICAS_MAX, REPLICAS_MAX) for count in (1, 2))
    usual = [c for c in one if (c.down_window_s, c.cooldown_s) == (300, 300)]
    grids = {
        _TUNED: one,
        "one trigger, windows of 300 s": usual,
        "a trigger each for calls and items, tuned": two,
    }
    return {
        name: best_settings(trace, grid, start_s=START_S, slo_s=SLO_S)
        for name, grid in grids.items()
    }


def policy_text(mode: PolicyMode) -> str:
    """Return the scaling policies of the stack, as TOML."""
    return "\n".join(
        (
            f"[gpu_types.{GPU_TYPE}]",
            "memory_gib = 24",
            "cost_per_hour = 1",
            f"throughput = [[{CONCURRENCY}, {TOKENS_PER_S}]]",
            f'[pools."{POOL}"]',
            f'mode = "{mode}"',
            f"replicas_max = {REPLICAS_MAX}",
            f"first_token_s = {SLO_S}",
            "queue_s = 2",
            "idle_s = 30",
            "stabilization_s = 60",
            f'gpu_types = ["{GPU_TYPE}"]',
            "",
        )
    )


def _turn(setup: Setup, trace: Trace, file: Path, peer: _Peer) -> Run:
    data = setup.work / peer.name.replace(" ", "-").replace(",", "")
    policies = setup.work / f"{data.name}.toml"
    mode = PolicyMode.ACTIVE if peer.keda is None else PolicyMode.PAUSED
    policies.write_text(policy_text(mode))
    options = (
        *OPTIONS,
        *("--engine-option", f"simulated_load_s={LOAD_S}"),
        *("--autoscale", str(policies)),
    )
    with running_stack(data, *options) as stack:
        turn = asyncio.run(run_turn(stack, data, trace, file, peer.keda))
        facts = _facts(turn, trace, JobsClient(stack.server), setup.work / "output.jsonl")
    setup.note(f"{peer.name}: {facts}")
    setup.note(f"{peer.name}: replicas {_shown(turn)}")
    calls = len(turn.first_waits_s)
    return Run(items=trace.job_items + calls, seconds=turn.samples[-1][0], cpu_s={}, facts=facts)


class _Line(msgspec.Struct):
    custom_id: str


def count_output(path: Path) -> Counter[str]:
    """Return how often each custom id is in an output file."""
    decoder = msgspec.json.Decoder(_Line)
    with path.open("rb") as file:
        return Counter(decoder.decode(line).custom_id for line in file)


def _facts(turn: LiveTurn, trace: Trace, client: JobsClient, output: Path) -> dict[str, float]:
    batch = turn.batch
    if batch is None or batch.request_counts is None:
        raise VoidRunError("the job has no counts")
    found = Counter[str]()
    if batch.output_file_id is not None:
        found = count_output(client.download(batch.output_file_id, output))
    waits_s = turn.first_waits_s
    return {
        "replica_s": turn.replica_s,
        **percentiles_ms(waits_s, (50, 95, 99)),
        "share": sum(wait_s <= SLO_S for wait_s in waits_s) / len(waits_s),
        "job_s": turn.job_ended_s - turn.job_began_s,
        "in_time": float(
            batch.status == "completed" and turn.job_ended_s <= trace.job_deadline_s + 1
        ),
        "zero_s": -1.0 if turn.zero_s is None else turn.zero_s,
        "lost": turn.lost_calls + trace.job_items - len(found),
        "twice": found.total() - len(found) + turn.odd_streams,
        "flips": turn.flips,
        "peak": turn.peak,
    }


def _shown(turn: LiveTurn) -> str:
    """Return the changes of the number of processes, with their times."""
    shown, last = [], -1
    for at_s, count, ordered in turn.samples:
        if count != last:
            shown.append(f"{at_s:.0f} s {count}({ordered})")
            last = count
    return ", ".join(shown)


_METRICS = (
    ("replica_s", "replica-seconds", "s", ""),
    ("share", f"calls with a token within {SLO_S:g} s", "share", "no less"),
    ("p50_ms", "first token, p50", "ms", ""),
    ("p95_ms", "first token, p95", "ms", ""),
    ("p99_ms", "first token, p99", "ms", ""),
    ("in_time", "job within its deadline", "1 = yes", "1"),
    ("job_s", "job, creation to completed", "s", ""),
    ("zero_s", "end of work to zero replicas", "s", "≥ 0"),
    ("lost", "calls and items lost", "", "0"),
    ("twice", "calls and items answered twice", "", "0"),
    ("flips", "turns of the ordered number", "", ""),
    ("peak", "most replicas", "", f"≤ {REPLICAS_MAX}"),
)


def _rows(models: Mapping[str, ModelResult], ours: Run, peer: Run) -> list[Row]:
    rows = [
        Row(metric=metric, unit=unit, ours=ours.facts[name], peer=peer.facts[name], goal=goal)
        for name, metric, unit, goal in _METRICS
    ]
    ratio = ours.facts["replica_s"] / peer.facts["replica_s"]
    rows.insert(1, Row(metric="ours of KEDA's", unit="ratio", ours=ratio, goal="≤ 0.6"))
    rows += [
        Row(
            metric=f"on the model, {name}",
            unit="replica-s",
            ours=ours.facts["replica_s"],
            peer=found.replica_s,
        )
        for name, found in models.items()
    ]
    return rows
