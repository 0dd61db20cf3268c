"""`millrace demo`: real jobs on a real broker, database and models, with checked results."""

import base64
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import typer
from rich.console import Console

from cli.api_client import connect
from cli.demo.autoscale_demo import autoscale_demo
from cli.demo.demo_jobs import (
    CHATTER,
    EMBEDDER,
    JOBS,
    QUERIES_JOB,
    TEXTS_JOB,
    DemoJob,
    FinishedJob,
    find_problems,
    run_job,
    write_inputs,
)
from cli.demo.demo_models import ensure_tiny_llama, minilm_path
from cli.demo.demo_stack import demo_stack
from cli.demo.demo_texts import DocumentedName, collect_docstrings, standard_library
from cli.exits import ExitCode
from cli.stack.data_folder import cache_dir
from cli.stack.processes.role_children import external_service_variables
from core.errors import SettingsError
from core.runtime.shutdown import treat_sighup_as_sigterm

DEFAULT_OUT = Path("out/demo")


def demo(
    texts: Annotated[int, typer.Option(min=10, help="Docstrings to embed, at most.")] = 4000,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of the chat job.")] = 300,
    out: Annotated[
        Path, typer.Option(help="Folder of the input and output files; it persists.")
    ] = DEFAULT_OUT,
    autoscale: Annotated[
        bool,
        typer.Option(
            "--autoscale",
            help="Show scaling instead, in two minutes: a pool of simulated replicas wakes from "
            "zero, grows and sleeps again. Writes OUT/scaling.svg.",
        ),
    ] = False,
) -> None:
    """Run real jobs once on this machine and check their results.

    Starts a Kafka broker, a Postgres, every role and two vLLM engines on the CPU. Embeds the
    docstrings of Python's standard library with MiniLM, chats with a tiny Llama of random weights,
    checks that every request has exactly one answer, searches the library by meaning, and stops
    everything. Exit code 1: a check failed; the logs are then in OUT/logs.

    With --autoscale the checks are that each item and call has one answer and that the pool is
    back at zero.
    """
    if named := external_service_variables(os.environ):
        raise SettingsError(f"unset {named}: the demo starts its own services")
    # SIGTERM raises KeyboardInterrupt, as Ctrl-C does, so that the stack is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    treat_sighup_as_sigterm()
    if not (autoscale_demo(out) if autoscale else _demo(texts, prompts, out)):
        raise typer.Exit(ExitCode.FAILED)


def _demo(text_count: int, prompt_count: int, out: Path) -> bool:
    began_s = time.monotonic()
    console = Console(highlight=False, markup=False, soft_wrap=True)
    out.mkdir(parents=True, exist_ok=True)
    models = {
        EMBEDDER: minilm_path(),
        CHATTER: ensure_tiny_llama(cache_dir(os.environ) / "models" / CHATTER),
    }
    engine = ["--engine", "vllm"]
    for name, path in models.items():
        engine += ["--model", f"{name}={path}"]
    with demo_stack(engine, out / "logs") as stack:
        try:
            console.print("Starting Kafka, Postgres, every role and two vLLM engines on the CPU …")
            documented = collect_docstrings(standard_library(), text_count)
            write_inputs(out, documented, prompt_count)
            console.print(f"{len(documented):,} docstrings of {standard_library()} are the input.")
            with console.status("Loading two models …"):
                url, key = stack.wait_until_ready()
            console.print(f"Ready after {time.monotonic() - began_s:.0f} s at {url}\n")
            client = connect(url, key)
            jobs = {job: run_job(client, job, out) for job in JOBS}
            if any(find_problems(job) for job in jobs.values()):
                stack.keep_logs()
        finally:
            console.print("\nStopping everything …")
    passed = print_report(jobs, documented, console.print)
    first_s = min(job.first_result_at_s for job in jobs.values()) - began_s
    all_s = time.monotonic() - began_s
    console.print(f"\nFirst results after {first_s:.0f} s, everything after {all_s:.0f} s.")
    console.print(f"Requests, results and errors lie in {out.absolute()}. Nothing is left running.")
    return passed


if TYPE_CHECKING:
    import numpy as np

    Vectors: TypeAlias = np.typing.NDArray[np.float32]

MATCHES_SHOWN = 3
_TEXT_CHARS_SHOWN = 90

WriteLine = Callable[[str], None]


def print_report(
    jobs: Mapping[DemoJob, FinishedJob], documented: Sequence[DocumentedName], write_line: WriteLine
) -> bool:
    """Print the results of every job; return whether all checks passed."""
    for name, job in jobs.items():
        write_line(
            f"{name.name}: {job.progress.ended:,} items in {job.seconds:.1f} s, "
            f"{job.items_per_s:,.0f} items/s, {job.tokens:,} tokens, upload and download included"
        )
    write_line(f"({CHATTER} has random weights: its answers are nonsense.)")
    passed = _report_checks(jobs, write_line)
    if passed:
        _report_search(jobs, {d.name: d.text for d in documented}, write_line)
    return passed


def _report_checks(jobs: Mapping[DemoJob, FinishedJob], write_line: WriteLine) -> bool:
    write_line("\nConservation: input = succeeded + failed + cancelled + expired")
    all_passed = True
    for name, job in jobs.items():
        p = job.progress
        sums = f"{p.total:,} = {p.succeeded:,} + {p.failed:,} + {p.cancelled:,} + {p.expired:,}"
        problems = find_problems(job)
        verdict = "; ".join(problems) or "every custom_id exactly once, in order"
        write_line(f"  {'FAILED' if problems else 'ok'}  {name.name}: {sums}; {verdict}")
        all_passed = all_passed and not problems
    return all_passed


def _report_search(
    jobs: Mapping[DemoJob, FinishedJob], text_by_name: Mapping[str, str], write_line: WriteLine
) -> None:
    names, vectors = read_embeddings(jobs[TEXTS_JOB].files.results)
    queries, query_vectors = read_embeddings(jobs[QUERIES_JOB].files.results)
    for query, vector in zip(queries, query_vectors, strict=True):
        write_line(f"\n“{query}”")
        for name, cosine in most_similar(names, vectors, vector, MATCHES_SHOWN):
            write_line(f"  {cosine:.2f}  {text_by_name[name][:_TEXT_CHARS_SHOWN]}")


def read_embeddings(path: Path) -> "tuple[list[str], Vectors]":
    """Return the custom_ids of an output file and their normalised vectors, one per row."""
    import numpy as np

    with path.open("rb") as lines:
        results = [msgspec.json.decode(line) for line in lines]
    texts = [result["response"]["body"]["data"][0]["embedding"] for result in results]
    rows = [np.frombuffer(base64.b64decode(text), dtype="<f4") for text in texts]
    vectors = np.stack(rows).astype(np.float32)
    names = [result["custom_id"] for result in results]
    return names, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def most_similar(
    names: Sequence[str], vectors: "Vectors", query: "Vectors", count: int
) -> list[tuple[str, float]]:
    """Return the `count` names with the highest cosine similarity to `query`, descending."""
    import numpy as np

    cosines = vectors @ query
    return [(names[index], float(cosines[index])) for index in np.argsort(-cosines)[:count]]
