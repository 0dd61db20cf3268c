"""`millrace batch watch`: show a job until it has ended."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from cli.batch.batch_options import IdArgument, TimeoutOption
from cli.batch.job_display import JobDisplay
from cli.batch.job_progress import exit_code_of, progress_of, wait_for_end
from cli.batch.job_views import say_problems, say_where
from cli.client import DEFAULT_URL, KeyOption, QuietOption, UrlOption, connect
from core.clock import SystemClock

if TYPE_CHECKING:
    import openai
    from openai.types import Batch


def watch(
    job: IdArgument,
    timeout: TimeoutOption = None,
    quiet: QuietOption = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Show a job's progress on stderr until it has ended; print its last state on stdout."""
    client = connect(url, key)
    ended = watch_to_end(client, job, timeout_s=timeout, quiet=quiet)
    typer.echo(ended.status)
    if quiet:
        say_problems(ended)
    else:
        say_where(ended, None, None)
    raise typer.Exit(exit_code_of(progress_of(ended)))


def watch_to_end(
    client: "openai.OpenAI", job: str, *, timeout_s: float | None, quiet: bool
) -> "Batch":
    """Show a job on stderr until it has ended; see `wait_for_end` for what is raised."""
    with JobDisplay(job, quiet=quiet) as display:
        return wait_for_end(
            look_at(client, job),
            display.show,
            timeout_s=timeout_s,
            clock=SystemClock(),
            sleep=time.sleep,
        )


def look_at(client: "openai.OpenAI", job: str) -> Callable[[float], "Batch"]:
    """Return a look at a job that takes at most the seconds it is given, for `wait_for_end`."""

    def look(timeout_s: float) -> "Batch":
        # The wait asks again by itself, and knows for how long.
        return client.with_options(timeout=timeout_s, max_retries=0).batches.retrieve(job)

    return look
