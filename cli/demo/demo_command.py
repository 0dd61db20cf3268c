"""`millrace demo`: real jobs on a real broker, database and models, with checked results."""

import os
import signal
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cli.api_client import connect
from cli.demo.demo_jobs import CHATTER, EMBEDDER, JOBS, find_problems, run_job, write_inputs
from cli.demo.demo_models import ensure_tiny_llama, minilm_path
from cli.demo.demo_report import print_report
from cli.demo.demo_stack import demo_stack
from cli.demo.demo_texts import collect_docstrings, standard_library
from cli.exits import ExitCode
from cli.stack.data_folder import cache_dir
from cli.stack.processes.role_children import external_service_variables
from core.errors import SettingsError
from core.shutdown import treat_sighup_as_sigterm

DEFAULT_OUT = Path("out/demo")


def demo(
    texts: Annotated[int, typer.Option(min=10, help="Docstrings to embed, at most.")] = 4000,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of the chat job.")] = 300,
    out: Annotated[
        Path, typer.Option(help="Folder of the input and output files; it persists.")
    ] = DEFAULT_OUT,
) -> None:
    """Run real jobs once on this machine and check their results.

    Starts a Kafka broker, a Postgres, every role and two vLLM engines on the CPU. Embeds the
    docstrings of Python's standard library with MiniLM, chats with a tiny Llama of random weights,
    checks that every request has exactly one answer, searches the library by meaning, and stops
    everything. Exit code 1: a check failed; the logs are then in OUT/logs.
    """
    if named := external_service_variables(os.environ):
        raise SettingsError(f"unset {named}: the demo starts its own services")
    # SIGTERM raises KeyboardInterrupt, as Ctrl-C does, so that the stack is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    treat_sighup_as_sigterm()
    if not _demo(texts, prompts, out):
        raise typer.Exit(ExitCode.FAILED)


def _demo(text_count: int, prompt_count: int, out: Path) -> bool:
    began_s = time.monotonic()
    console = Console(highlight=False, markup=False, soft_wrap=True)
    out.mkdir(parents=True, exist_ok=True)
    models = {
        EMBEDDER: minilm_path(),
        CHATTER: ensure_tiny_llama(cache_dir(os.environ) / "models" / CHATTER),
    }
    with demo_stack(models, out / "logs") as stack:
        try:
            console.print("Starting Kafka, Postgres, every role and two vLLM engines on the CPU …")
            documented = collect_docstrings(standard_library(), text_count)
            write_inputs(out, documented, prompt_count)
            console.print(f"{len(documented):,} docstrings of {standard_library()} are the input.")
            with console.status("Loading two models …"):
                endpoint = stack.wait_until_ready()
            console.print(f"Ready after {time.monotonic() - began_s:.0f} s at {endpoint.url}\n")
            client = connect(endpoint.url, endpoint.key)
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
