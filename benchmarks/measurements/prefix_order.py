"""A7: what the order of a job's items saves where their prompts share prefixes.

What: a job of completions with 20 prefixes of about 500 tokens, 500 items each, in random order,
with vLLM and the demo's tiny model on a CPU: a larger model would need an hour for the prompts
without a cache. vLLM's KV cache holds about eight running sequences, less than all prefixes: in the
order of the file it forgets most of them before they come again. Intake's order by prefixes
(`MILLRACE_INTAKE_PREFIX_ORDER`) is on, and off; off is FIFO. Within one job of one tenant, round
robin and strict priority are FIFO, too. Intake without the setting has the order of the file alone,
and that is measured.

How: cached tokens are `prompt_tokens_details.cached_tokens` of the output file. The ideal is what a
cache without limit would hold: whole blocks of all but the first item of each prefix. Each order
has a stack of its own, and a warm-up of other prompts.

Goal: 0.98 of the ideal, and 1.4 times the tokens a second of FIFO.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.children.small_cache_replica import BLOCK_TOKENS
from benchmarks.data.input_files import COMPLETIONS, SEED
from benchmarks.data.prefix_items import (
    PrefixItem,
    ideal_cached_tokens,
    prefix_file,
    shuffled_items,
)
from benchmarks.runs import Report, Row, Run, Setup
from benchmarks.stacks.stack import running_stack
from benchmarks.stacks.stack_jobs import upload_job
from cli.demo.demo_models import ensure_tiny_llama
from cli.stack.data_folder import cache_dir
from jobs.settings import IntakeSettings

MODEL = "tiny-llama"
PREFIXES = 20
ITEMS, QUICK_ITEMS = 10_000, 400
WARM_UP_ITEMS = 20
SEQUENCES = 8
BLOCKS = 180
"""Of the KV cache: eight sequences of 20 blocks, and one prefix more."""

FIELD = "prefix_order"
SETTING = f"{IntakeSettings.env_prefix}PREFIX_ORDER"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a job."""

    prompt: int
    cached: int
    output: int


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    folder = ensure_tiny_llama(cache_dir(os.environ) / "models" / MODEL)
    items = shuffled_items(PREFIXES, setup.count(ITEMS, QUICK_ITEMS) // PREFIXES, seed=SEED)
    ideal = _ideal(folder, items)
    orders = {"off": {SETTING: "false"}, "on": {SETTING: "true"}}
    if FIELD not in IntakeSettings.model_fields:
        orders = {"off": {}}
        setup.note(f"intake has no {SETTING}: its order is that of the file")
    runs = {name: _run(setup, folder, items, name, env) for name, env in orders.items()}
    rows: list[Row] = []
    for name, run in runs.items():
        setup.note(f"order {name}: {run.facts}")
        rows += _rows(name, run, ideal, runs["off"])
    return Report(name="prefix_order", rows=rows, runs=[*runs.values()])


def _run(
    setup: Setup, folder: Path, items: Sequence[PrefixItem], name: str, env: dict[str, str]
) -> Run:
    """Run a warm-up and the job on a stack of this order."""
    file = prefix_file(setup.work / f"{name}.jsonl", items, model=MODEL)
    others = shuffled_items(WARM_UP_ITEMS, 1, seed=SEED + 1)
    warm_up = prefix_file(setup.work / f"{name}-warm-up.jsonl", others, model=MODEL)
    options = (
        *("--engine", "vllm", "--model", f"{MODEL}={folder}"),
        *("--engine-option", f"vllm_max_num_seqs={SEQUENCES}"),
    )
    output = setup.work / f"{name}-output.jsonl"
    program = ("benchmarks.children.role_stack", "gpu-consumer", str(BLOCKS))
    with running_stack(setup.work / name, *options, env=env, program=program) as stack:
        upload_job(stack, warm_up, output, endpoint=COMPLETIONS).run()
        run = upload_job(stack, file, output, endpoint=COMPLETIONS).run()
    used = usage_of(output)
    facts = {"prompt": used.prompt, "cached": used.cached, "output": used.output}
    return Run(items=run.items, seconds=run.seconds, cpu_s=run.cpu_s, facts=facts)


def usage_of(path: Path) -> Usage:
    """Return the sums of the usage in an output file."""
    prompt = cached = output = 0
    with path.open("rb") as file:
        for line in file:
            usage = msgspec.json.decode(line)["response"]["body"]["usage"]
            prompt += usage["prompt_tokens"]
            output += usage["completion_tokens"]
            cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Usage(prompt, cached, output)


def _ideal(folder: Path, items: Sequence[PrefixItem]) -> int:
    """Return the tokens that a cache without limit holds of the items."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = [encoded.ids for encoded in tokenizer.encode_batch([i.prompt.text for i in items])]
    numbers = {prefix: number for number, prefix in enumerate({item.prefix for item in items})}
    return ideal_cached_tokens(
        prompts, [numbers[item.prefix] for item in items], block_tokens=BLOCK_TOKENS
    )


def _rows(name: str, run: Run, ideal: int, fifo: Run) -> list[Row]:
    def tokens_per_s(one: Run) -> float:
        return (one.facts["prompt"] + one.facts["output"]) / one.seconds

    is_on = name == "on"
    return [
        Row(
            metric=f"order {name}: cached tokens",
            unit="of ideal",
            ours=run.facts["cached"] / ideal,
            goal="≥ 0.98" if is_on else "",
        ),
        Row(
            metric=f"order {name}: cached tokens",
            unit="of the prompts",
            ours=run.facts["cached"] / run.facts["prompt"],
        ),
        Row(metric=f"order {name}: tokens", unit="1/s", ours=tokens_per_s(run)),
        Row(
            metric=f"order {name}: tokens",
            unit="× FIFO",
            ours=tokens_per_s(run) / tokens_per_s(fifo),
            goal="≥ 1.4" if is_on else "",
        ),
    ]
