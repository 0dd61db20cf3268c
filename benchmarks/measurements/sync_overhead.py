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
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.children.line_child import LineChild, run_child
from benchmarks.children.online_load import LoadTask
from benchmarks.load.load_runs import chat_body, percentile, run_load, run_measured, warm_up
from benchmarks.runs import Report, Row, Run, Setup
from benchmarks.stacks.stack import RunningStack, running_stack
from benchmarks.statistics.intervals import interval
from benchmarks.statistics.pairing import is_peer_first, role_rows, run_repeatedly
from cli.stack.data_folder import read_state

LATENCY_MS = 5
CLIENTS = (1, 8)
CALLS, QUICK_CALLS = 1_500, 60
HOPS = 3
MODEL = "upstream"
PATH = "/v1/chat/completions"
READY_S_MAX = 30.0
GOALS = {50: 1.1, 99: 1.5}
ADDED_GOALS_MS = {50: 5, 99: 20}


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses of both sides and of the broker."""

    stack: RunningStack
    upstream: str
    servers: str


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    rows: list[Row] = []
    runs: list[Run] = []
    voids: list[str] = []
    with closing(
        LineChild(
            "upstream",
            "benchmarks.children.upstream",
            [MODEL, str(LATENCY_MS)],
            setup.work / "logs",
        )
    ) as upstream:
        url = f"http://127.0.0.1:{upstream.expect('ready', READY_S_MAX)}"
        data = setup.work / "stack"
        options = ("--engine", "openai_http", "--upstream", url, "--model", MODEL)
        with running_stack(data, *options) as stack:
            state = read_state(data)
            assert state is not None
            endpoints = Endpoints(stack, url, state.kafka_bootstrap_servers)
            warm_up(setup, stack.url, stack.key, PATH, chat_body(MODEL, stream=False))
            for clients in CLIENTS:
                rounds = itertools.count()
                found, void = run_repeatedly(
                    lambda n=clients, rounds=rounds: _round(setup, endpoints, n, next(rounds)),  # type: ignore[misc]
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


def _round(setup: Setup, endpoints: Endpoints, clients: int, round_number: int) -> Run:
    calls = setup.count(CALLS, QUICK_CALLS)
    body = chat_body(MODEL, stream=False)
    stack = endpoints.stack

    def task(url: str, key: str) -> LoadTask:
        return LoadTask(url=url, key=key, path=PATH, body=body, clients=clients, calls=calls)

    samples: dict[str, list[float]] = {}
    runs: list[Run] = []

    def direct() -> None:
        samples["direct"] = run_load(task(endpoints.upstream, "none"), setup.work).latencies_s

    def facade() -> None:
        ours, used = run_measured(task(stack.url, stack.key), setup.work, stack.roles())
        samples["facade"] = ours.latencies_s
        runs.append(Run(items=calls, seconds=ours.seconds, cpu_s=used))

    def hops() -> None:
        samples["hops"] = _echo(setup, endpoints.servers, calls)

    run_alternating(round_number, (direct, facade, hops))
    facts = {
        f"{name}_p{percent}_ms": percentile(found, percent) * 1000
        for name, found in samples.items()
        for percent in GOALS
    }
    return replace(runs[0], facts=facts)


def _echo(setup: Setup, servers: str, count: int) -> list[float]:
    arguments = [servers, str(count), str(HOPS)]
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
        added, hops = _added(percent), _fact(f"hops_p{percent}_ms")
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
                ours=median(map(_fact(f"facade_p{percent}_ms"), runs)),
                peer=median(map(_fact(f"direct_p{percent}_ms"), runs)),
            ),
        ]
    return rows + role_rows(runs, f"{clients} clients")


def _fact(name: str) -> Callable[[Run], float]:
    return lambda run: run.facts[name]


def _added(percent: int) -> Callable[[Run], float]:
    return lambda run: run.facts[f"facade_p{percent}_ms"] - run.facts[f"direct_p{percent}_ms"]
