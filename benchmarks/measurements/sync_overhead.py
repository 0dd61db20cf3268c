"""A3: the added latency of a synchronous call that travels through the log.

What: (latency through Millrace − latency of the same call straight to the engine) over three hops
through the same broker, at p50 and p99, with 1 and 8 closed-loop clients. The engine is an upstream
of 5 ms behind `openai_http`. A call makes three hops: requests, batches, replies; one sample is all
three in a row.

How: the broker is warm. Each round measures direct calls, calls through Millrace, and the hops, in
reverse order every other round; the first is dropped. The clients are sockets in a process of their
own, the same for both sides. Nothing else runs.

Goal: at most 1.1 at p50 and 1.5 at p99; added latency about 5 ms at p50 and 20 ms at p99.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from benchmarks.children.line_child import run_child
from benchmarks.runs import Report, Row, Run, Setup
from benchmarks.stacks.load_runs import (
    Server,
    chat_task,
    percentiles_ms,
    run_load,
    run_measured,
    warm_up,
)
from benchmarks.stacks.services import running_server
from benchmarks.stacks.stack import RunningStack, running_stack
from benchmarks.statistics.intervals import interval
from benchmarks.statistics.pairing import fact, is_peer_first, role_rows, run_repeatedly

LATENCY_MS = 5
CLIENTS = (1, 8)
CALLS, QUICK_CALLS = 1_500, 60
HOPS = 3
MODEL = "upstream"
READY_S_MAX = 30.0
GOALS = {50: 1.1, 99: 1.5}
ADDED_GOALS_MS = {50: 5, 99: 20}


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    rows: list[Row] = []
    runs: list[Run] = []
    voids: list[str] = []
    with running_server(
        "upstream", [MODEL, str(LATENCY_MS)], setup.work / "logs", ready_s_max=READY_S_MAX
    ) as upstream:
        options = ("--engine", "openai_http", "--upstream", upstream.address, "--model", MODEL)
        with running_stack(setup.work / "stack", *options) as stack:
            warm_up(setup, stack.server, MODEL)
            for clients in CLIENTS:
                found, void = run_repeatedly(
                    partial(_round, setup, stack, upstream.address, clients, itertools.count()),
                    setup,
                )
                rows += added_rows(clients, found)
                runs += found
                voids += void
    return Report(name="sync_overhead", rows=rows, runs=runs, voids=voids)


def run_alternating(round_number: int, steps: Sequence[Callable[[], None]]) -> None:
    """Run all steps, in reverse order every other round, as pairs do."""
    for step in steps[::-1] if is_peer_first(round_number) else steps:
        step()


def _round(
    setup: Setup, stack: RunningStack, upstream: str, clients: int, rounds: Iterator[int]
) -> Run:
    calls = setup.count(CALLS, QUICK_CALLS)
    task = partial(chat_task, model=MODEL, clients=clients, calls=calls)
    samples: dict[str, list[float]] = {}
    runs: list[Run] = []

    def direct() -> None:
        samples["direct"] = run_load(task(Server(upstream)), setup.work).latencies_s

    def facade() -> None:
        ours, used = run_measured(task(stack.server), setup.work, stack.roles())
        samples["facade"] = ours.latencies_s
        runs.append(Run(items=calls, seconds=ours.seconds, cpu_s=used))

    def hops() -> None:
        samples["hops"] = _echo(setup, calls)

    run_alternating(next(rounds), (direct, facade, hops))
    facts: dict[str, float] = {}
    for name, found in samples.items():
        facts |= percentiles_ms(found, GOALS, f"{name}_")
    return replace(runs[0], facts=facts)


def _echo(setup: Setup, count: int) -> list[float]:
    arguments = [str(setup.work / "stack"), str(count), str(HOPS)]
    s_max = READY_S_MAX + count * HOPS * 0.1
    hops: list[float] = run_child(
        "echo", "benchmarks.children.kafka_echo", arguments, setup.work / "logs", s_max
    )
    return hops


def added_rows(clients: int, runs: list[Run]) -> list[Row]:
    """Return the added latency against three hops at each percentile, and the CPU by role."""
    rows = []
    for percent, goal in GOALS.items():
        name = f"{clients} clients, p{percent}"
        added, hops = _added(percent), fact(f"hops_p{percent}_ms")
        ratio = interval([added(run) / hops(run) for run in runs])
        rows += [
            Row(
                metric=f"{name}: added by the facade, beside three hops",
                unit="ms",
                ours=median(map(added, runs)),
                peer=median(map(hops, runs)),
                ratio=ratio,
                goal=f"ratio ≤ {goal}; ≤ {ADDED_GOALS_MS[percent]} ms",
            ),
            Row(
                metric=f"{name}: through the facade, beside straight",
                unit="ms",
                ours=median(map(fact(f"facade_p{percent}_ms"), runs)),
                peer=median(map(fact(f"direct_p{percent}_ms"), runs)),
            ),
        ]
    return rows + role_rows(runs, f"{clients} clients")


def _added(percent: int) -> Callable[[Run], float]:
    return lambda run: run.facts[f"facade_p{percent}_ms"] - run.facts[f"direct_p{percent}_ms"]
