"""Time to the first token through Millrace, compared with vLLM's own HTTP server.

What: from the first byte of a streaming chat request to the first byte of the response's body, one
client, the same prompt, model and vLLM options on both sides.

How: both servers are up the whole time, and one is idle while the other is measured. Rounds
alternate and the first is dropped; both are warmed up by as many calls. A first byte is a first
token on both sides: neither sends a head before it.

Goal: at most 5 ms more at p50.
"""

import os
from collections.abc import Mapping

from benchmarks.data.bench_model import ensure_bench_llama
from benchmarks.runs import Report, Row, Run, Setup
from benchmarks.stacks.load_runs import Server, chat_task, percentiles_ms, run_measured, warm_up
from benchmarks.stacks.services import running_server
from benchmarks.stacks.stack import running_stack
from benchmarks.statistics.pairing import fact, paired_row, run_pairs
from cli.stack.data_folder import cache_dir

CALLS, QUICK_CALLS = 100, 10
MODEL = "bench-llama"
TOKENS = 8
READY_S_MAX = 300.0
PERCENTS = (50, 95)


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    folder = ensure_bench_llama(cache_dir(os.environ))
    options = ("--engine", "vllm", "--model", f"{MODEL}={folder}")
    with (
        running_stack(setup.work / "stack", *options) as stack,
        running_server(
            "vllm_server", [str(folder), MODEL], setup.work / "logs", ready_s_max=READY_S_MAX
        ) as server,
    ):
        roles = stack.roles()
        for one in (stack.server, Server(server.address)):
            warm_up(setup, one, MODEL, tokens=1)
        pairs, voids = run_pairs(
            lambda: _run(setup, stack.server, roles),
            lambda: _run(setup, Server(server.address), server.roles),
            setup,
        )
    rows = []
    for percent in PERCENTS:
        first_ms = fact(f"first_p{percent}_ms")
        added_ms = sorted(first_ms(pair.ours) - first_ms(pair.peer) for pair in pairs)
        rows += [
            paired_row(f"first token p{percent}", "ms", pairs, first_ms),
            Row(
                metric=f"first token p{percent}: more than vLLM's own server",
                unit="ms",
                ours=added_ms[len(pairs) // 2],
                goal="≤ 5" if percent == PERCENTS[0] else "",
            ),
        ]
    return Report(name="first_token", rows=rows, pairs=pairs, voids=voids)


def _run(setup: Setup, server: Server, roles: Mapping[str, int]) -> Run:
    calls = setup.count(CALLS, QUICK_CALLS)
    task = chat_task(server, MODEL, clients=1, calls=calls, tokens=TOKENS, pieces_min=1)
    found, used = run_measured(task, setup.work, roles)
    facts = percentiles_ms(found.first_waits_s, PERCENTS, "first_")
    return Run(items=calls, seconds=found.seconds, cpu_s=used, facts=facts)
