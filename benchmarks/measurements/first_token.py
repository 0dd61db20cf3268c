"""Time to the first token through Millrace, compared with vLLM's own HTTP server.

What: from the first byte of a streaming chat request to the first byte of the response's body, one
client, the same prompt, model and vLLM options on both sides.

How: both servers are up the whole time, and one is idle while the other is measured. Rounds
alternate and the first is dropped; both are warmed up by as many calls. A first byte is a first
token on both sides: neither sends a head before it.

Goal: at most 5 ms more at p50.
"""

import os
from collections.abc import Callable
from contextlib import closing

from benchmarks.children.line_child import LineChild
from benchmarks.children.online_load import LoadTask
from benchmarks.data.bench_model import ensure_bench_llama
from benchmarks.load.load_runs import chat_body, percentile, run_measured, warm_up
from benchmarks.runs import Report, Row, Run, Setup
from benchmarks.stacks.stack import running_stack
from benchmarks.statistics.pairing import paired_row, run_pairs
from cli.stack.data_folder import cache_dir

CALLS, QUICK_CALLS = 100, 10
MODEL = "bench-llama"
PATH = "/v1/chat/completions"
TOKENS = 8
READY_S_MAX = 300.0
PERCENTS = (50, 95)


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    folder = ensure_bench_llama(cache_dir(os.environ))
    options = ("--engine", "vllm", "--model", f"{MODEL}={folder}")
    with (
        running_stack(setup.work / "stack", *options) as stack,
        closing(
            LineChild(
                "vllm", "benchmarks.children.vllm_server", [str(folder), MODEL], setup.work / "logs"
            )
        ) as server,
    ):
        url = f"http://127.0.0.1:{server.expect('ready', READY_S_MAX)}"
        roles = stack.roles()
        short = chat_body(MODEL, stream=False, max_tokens=1)
        for base, key in ((stack.url, stack.key), (url, "none")):
            warm_up(setup, base, key, PATH, short)
        pairs, voids = run_pairs(
            lambda: _run(setup, stack.url, stack.key, roles),
            lambda: _run(setup, url, "none", {"vllm": server.pid}),
            setup,
        )
    rows = [
        row
        for percent in PERCENTS
        for row in (
            paired_row(f"first token p{percent}", "ms", pairs, _first(percent)),
            Row(
                metric=f"first token p{percent}: more than vLLM's own server",
                unit="ms",
                ours=sorted(
                    _first(percent)(pair.ours) - _first(percent)(pair.peer) for pair in pairs
                )[len(pairs) // 2],
                goal="≤ 5" if percent == PERCENTS[0] else "",
            ),
        )
    ]
    return Report(name="first_token", rows=rows, pairs=pairs, voids=voids)


def _run(setup: Setup, url: str, key: str, roles: dict[str, int]) -> Run:
    calls = setup.count(CALLS, QUICK_CALLS)
    body = chat_body(MODEL, stream=True, max_tokens=TOKENS)
    task = LoadTask(url=url, key=key, path=PATH, body=body, clients=1, calls=calls, pieces_min=1)
    found, used = run_measured(task, setup.work, roles)
    facts = {f"first_p{p}_ms": percentile(found.first_waits_s, p) * 1000 for p in PERCENTS}
    return Run(items=calls, seconds=found.seconds, cpu_s=used, facts=facts)


def _first(percent: int) -> Callable[[Run], float]:
    return lambda run: run.facts[f"first_p{percent}_ms"]
