"""Items a second through `openai_http` with an upstream that takes 20 ms a call.

What: jobs of chat items of 1 KB, at 64 and at 512 concurrent calls, from creation to completion.

How: the upstream (`benchmarks/children/upstream.py`) runs on the same machine and takes CPU from
the stack; its CPU is reported separately. Each concurrency has a stack of its own; runs follow each
other and the first is dropped. All slots are the job's, without headroom for online calls.
`possible` is concurrency over latency, which no client can exceed.

Goal: 3,000 items/s at 64 (3,200 are possible), 6,700 at 512.
"""

from dataclasses import replace

from benchmarks.data.input_files import InputFile, chat_file
from benchmarks.runs import Report, Row, Run, Setup
from benchmarks.stacks.services import Service, running_server
from benchmarks.stacks.stack import running_stack
from benchmarks.stacks.stack_jobs import upload_job
from benchmarks.statistics.cpu import cpu_by_role, cpu_used
from benchmarks.statistics.pairing import role_rows, run_repeatedly, single_row

LATENCY_MS = 20
GOALS = {64: "≥ 3,000", 512: "≥ 6,700"}
"""Concurrency to items a second."""

ITEMS, QUICK_ITEMS = {64: 30_000, 512: 60_000}, 1_000
MODEL = "upstream"
READY_S_MAX = 30.0


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    rows: list[Row] = []
    runs: list[Run] = []
    voids: list[str] = []
    with running_server(
        "upstream", [MODEL, str(LATENCY_MS)], setup.work / "logs", ready_s_max=READY_S_MAX
    ) as upstream:
        for concurrency, goal in GOALS.items():
            items = setup.count(ITEMS[concurrency], QUICK_ITEMS)
            file = chat_file(setup.work / "input.jsonl", items, model=MODEL)
            setup.note(f"concurrency {concurrency}, {items:,} items")
            found, void = _measure(setup, file, upstream, concurrency)
            rows += _rows(concurrency, goal, found)
            runs += found
            voids += void
    return Report(name="http_engine", rows=rows, runs=runs, voids=voids)


def _measure(
    setup: Setup, file: InputFile, upstream: Service, concurrency: int
) -> tuple[list[Run], list[str]]:
    options = [
        *("--engine", "openai_http", "--upstream", upstream.address),
        *("--model", MODEL, "--concurrency", str(concurrency)),
    ]
    env = {"MILLRACE_ENGINE_INTERACTIVE_HEADROOM": "0"}
    with running_stack(setup.work / f"stack-{concurrency}", *options, env=env) as stack:
        job = upload_job(stack, file, setup.work / "output.jsonl")

        def run() -> Run:
            before = cpu_by_role(upstream.roles)
            ours = job.run()
            used = cpu_used(before, cpu_by_role(upstream.roles))["upstream"]
            return replace(ours, facts={"upstream_cpu_s": used, "concurrency": concurrency})

        return run_repeatedly(run, setup)


def _rows(concurrency: int, goal: str, runs: list[Run]) -> list[Row]:
    name = f"20 ms × {concurrency}"
    possible = concurrency / (LATENCY_MS / 1000)
    return [
        single_row(name, "items/s", runs, lambda run: run.rate, goal=goal),
        single_row(f"{name} of the possible", "share", runs, lambda run: run.rate / possible),
        single_row(f"{name}, all processes", "µs CPU/item", runs, lambda run: run.cpu_us),
        *role_rows(runs, name),
        single_row(
            f"{name}: the upstream, not counted",
            "µs CPU/item",
            runs,
            lambda run: run.facts["upstream_cpu_s"] / run.items * 1e6,
        ),
    ]
