"""A4: compares vLLM's utilisation in the pipeline with offline generation.

What: output tokens a second of a completions job, from creation to completion, over those of
`LLM.generate` on the same 2,000 prompts with the same options. The model is generated and random,
with a size at which offline generation does at most 100 requests a second on two cores, like real
models on real accelerators; with a model of a thousand requests a second, the front end would be
measured.

How: each alone on the machine, alternating, both warm, without loading. A run takes a minute, so
three pairs are enough; the first is dropped.

Goal: at least 0.95.
"""

import json
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks.children.line_child import LineChild
from benchmarks.children.offline import WARM_UP_ITEMS
from benchmarks.data.bench_model import ensure_bench_llama
from benchmarks.data.input_files import COMPLETIONS, completion_file, prompts
from benchmarks.runs import Report, Run, Setup, VoidRunError
from benchmarks.stacks.stack import running_stack
from benchmarks.stacks.stack_jobs import upload_job
from benchmarks.statistics.cpu import cpu_by_role, cpu_used
from benchmarks.statistics.pairing import paired_row, role_rows, run_pairs
from cli.stack.data_folder import cache_dir

ITEMS, QUICK_ITEMS = 2_000, 64
PAIRS_MAX = 3
MODEL = "bench-llama"
READY_S_MAX, DONE_S_MAX = 300.0, 1800.0


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    items = setup.count(ITEMS, QUICK_ITEMS)
    folder = ensure_bench_llama(cache_dir(os.environ))
    pairs, voids = run_pairs(
        lambda: _run_pipeline(setup, folder, items),
        lambda: _run_offline(setup, folder, items),
        replace(setup, pairs=min(setup.pairs, PAIRS_MAX)),
    )
    rows = [
        paired_row("output", "tokens/s", pairs, _tokens_per_s, goal="ratio ≥ 0.95"),
        paired_row("requests", "items/s", pairs, lambda run: run.rate, goal="offline ≤ 100"),
        paired_row("all processes", "µs CPU/item", pairs, lambda run: run.cpu_us),
        *role_rows([pair.ours for pair in pairs], "ours"),
    ]
    return Report(name="engine_saturation", rows=rows, pairs=pairs, voids=voids)


def _run_pipeline(setup: Setup, folder: Path, items: int) -> Run:
    measured = prompts(items)
    file = completion_file(setup.work / "input.jsonl", measured, model=MODEL)
    warm_up = completion_file(
        setup.work / "warm-up.jsonl", prompts(WARM_UP_ITEMS, seed=0), model=MODEL
    )
    options = ("--engine", "vllm", "--model", f"{MODEL}={folder}")
    output = setup.work / "output.jsonl"
    with running_stack(setup.work / "stack", *options) as stack:
        upload_job(stack, warm_up, output, endpoint=COMPLETIONS).run()
        run = upload_job(stack, file, output, endpoint=COMPLETIONS).run()
    tokens = _output_tokens(output)
    _check_tokens(tokens, sum(prompt.output_tokens for prompt in measured))
    return replace(run, facts={"output_tokens": tokens})


def _run_offline(setup: Setup, folder: Path, items: int) -> Run:
    with closing(
        LineChild("offline", "benchmarks.children.offline", [str(folder), str(items)], setup.work)
    ) as child:
        child.expect("ready", READY_S_MAX)
        roles = {"offline": child.pid}
        before = cpu_by_role(roles)
        child.send_line("go")
        found = json.loads(child.expect("result", DONE_S_MAX))
        used = cpu_used(before, cpu_by_role(roles))
    _check_tokens(found["tokens"], sum(prompt.output_tokens for prompt in prompts(items)))
    facts = {"output_tokens": found["tokens"]}
    return Run(items=items, seconds=found["seconds"], cpu_s=used, facts=facts)


def _output_tokens(path: Path) -> int:
    with path.open("rb") as file:
        bodies = (msgspec.json.decode(text)["response"]["body"] for text in file)
        return sum(body["usage"]["completion_tokens"] for body in bodies)


def _check_tokens(found: int, requested: int) -> None:
    """Raise VoidRunError unless the run generated the requested tokens."""
    if found != requested:
        raise VoidRunError(f"{found} output tokens, {requested} were requested")


def _tokens_per_s(run: Run) -> float:
    return run.facts["output_tokens"] / run.seconds
