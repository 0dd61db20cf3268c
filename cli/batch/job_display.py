"""Shows a job: on stderr until it has ended and at its end, and as the rows of a table."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from cli.api_client import Batch, Client, extension_fields
from cli.batch.job_progress import JobStatus, progress_of, wait_until_ended

OUTCOME_STYLES = {"succeeded": "green", "failed": "red", "cancelled": "yellow", "expired": "yellow"}


class JobDisplay:
    """Shows one job while its block runs. Follows NO_COLOR and TERM."""

    def __init__(self, label: str, *, quiet: bool = False) -> None:
        console = Console(file=sys.stderr, quiet=quiet)
        self._label = label
        self._live = console.is_terminal and not quiet
        self._quiet = quiet
        self._state = ""
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            _RateColumn(),
            EndColumn(compact=True),
            _OutcomesColumn(),
            TextColumn("{task.fields[waiting]}"),
            console=console,
            disable=not self._live,
        )
        self._task = self._progress.add_task(label, total=None, job=None, waiting="", ends=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the progress bar; its last state stays on the screen."""
        self._progress.stop()

    def show(self, batch: Batch) -> None:
        """Show the current state of the job."""
        job = progress_of(batch)
        if self._live:
            self._progress.update(
                self._task,
                description=f"{self._label} {job.state}",
                total=job.total or None,
                completed=job.ended,
                job=job,
                waiting=waiting_text(extension_fields(batch).get("waiting") or {}),
                ends=end_text(extension_fields(batch)),
            )
        elif not self._quiet and job.state != self._state:
            sys.stderr.write(f"{batch.id} {job.state} {job.ended}/{job.total}\n")
        self._state = job.state


def end_text(extension: dict[str, Any]) -> str | None:
    """Return the expected end that the server estimates, "" if it knows none.

    None: it does not estimate, as servers of earlier releases.
    """
    eta = extension.get("eta")
    if eta is None:
        return None
    return "" if eta.get("p50") is None else f"ends {time_text(eta['p50'])}"


class EndColumn(TimeRemainingColumn):
    """The `end_text` of a job; if it is None, the time left by the rate of the last seconds."""

    def render(self, task: Task) -> Text:
        """See `ProgressColumn`."""
        ends: str | None = task.fields.get("ends")
        return super().render(task) if ends is None else Text(ends)


class _RateColumn(ProgressColumn):
    """Items per second: of the last seconds while the job runs, of its entire time at the end."""

    def render(self, task: Task) -> Text:
        """See `ProgressColumn`."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s")


class _OutcomesColumn(ProgressColumn):
    """The number of items by outcome, without zeros."""

    def render(self, task: Task) -> Text:
        """See `ProgressColumn`."""
        job: JobStatus | None = task.fields.get("job")
        counts = {} if job is None else {name: getattr(job, name) for name in OUTCOME_STYLES}
        shown = [
            (f"{count} {name} ", OUTCOME_STYLES[name]) for name, count in counts.items() if count
        ]
        return Text.assemble(*shown)


ERRORS_SHOWN_MAX = 5
LIST_HEADERS = ("id", "status", "ended", "total", "endpoint", "created")


def print_outcome(
    batch: Batch, output: Path | None, errors: Path | None, *, quiet: bool = False
) -> None:
    """Print on stderr how the job ended and where its files are; if quiet, only invalid lines."""
    if quiet:
        _print_validation_errors(batch)
        return
    job = progress_of(batch)
    counts = f"{job.succeeded} of {job.total} succeeded, {job.failed} failed, "
    counts += f"{job.cancelled} cancelled, {job.expired} expired"
    typer.echo(f"{batch.id} {job.state}" + (f": {counts}" if job.total else ""), err=True)
    _print_validation_errors(batch)
    fetch = f"millrace batch results {batch.id}"
    if batch.output_file_id:
        typer.echo(f"results: {output or f'{fetch} -o FILE'}", err=True)
    if batch.error_file_id:
        typer.echo(f"errors: {errors or f'{fetch} -o FILE --errors FILE'}", err=True)


def _print_validation_errors(batch: Batch) -> None:
    """Print on stderr why the validation of the job's input failed, if it did."""
    for line in _validation_errors(batch):
        typer.echo(line, err=True)


def _validation_errors(batch: Batch) -> list[str]:
    """Return the first errors, one line each, and the number of the others."""
    found = (batch.errors.data if batch.errors else None) or []
    shown = [
        f"line {e.line}: {e.message} ({e.code})" if e.line else f"{e.message} ({e.code})"
        for e in found[:ERRORS_SHOWN_MAX]
    ]
    more = max(len(found), int(extension_fields(batch).get("error_count", 0))) - len(shown)
    if more:
        shown.append(f"and {more} more: `millrace batch status {batch.id} -o json`")
    return shown


def status_rows(batch: Batch) -> list[tuple[str, str]]:
    """Return the fields of a job that are not empty, as (name, value)."""
    job = progress_of(batch)
    usage = batch.usage
    rows = [
        ("id", batch.id),
        ("status", batch.status),
        ("endpoint", batch.endpoint),
        ("model", batch.model or ""),
        ("items", str(job.total)),
        ("succeeded", str(job.succeeded)),
        ("failed", str(job.failed)),
        ("cancelled", str(job.cancelled)),
        ("expired", str(job.expired)),
        ("tokens", f"{usage.input_tokens} in, {usage.output_tokens} out" if usage else ""),
        *_control_rows(batch),
        ("created", time_text(batch.created_at)),
        ("expires", time_text(batch.expires_at)),
        ("input file", batch.input_file_id),
        ("output file", batch.output_file_id or ""),
        ("error file", batch.error_file_id or ""),
    ]
    return [row for row in rows if row[1]] + [("error", line) for line in _validation_errors(batch)]


def _control_rows(batch: Batch) -> list[tuple[str, str]]:
    """Return the control fields that differ from those of an ordinary job."""
    extension = extension_fields(batch)
    files = [str(file["state"]) for file in extension.get("appended_files") or ()]
    is_sealed = extension.get("sealed", True)
    return [
        ("paused", time_text(extension.get("paused_at"))),
        ("waits until", _quarantine_text(extension.get("quarantined_until"))),
        ("closed by", extension.get("close_reason") or ""),
        ("sealed", "" if is_sealed else "no: it waits for more files, or for a seal"),
        ("appended", ", ".join(files)),
        ("copies", str(extension.get("deduplicated_items") or "")),
        *estimate_rows(extension),
    ]


def estimate_rows(extension: dict[str, Any]) -> list[tuple[str, str]]:
    """Return when a running job will end and why its items wait, or why its end is not known."""
    eta, waiting = extension.get("eta") or {}, extension.get("waiting") or {}
    missed = eta.get("miss_probability")
    end = f"{time_text(eta.get('p50'))}, 9 of 10 by {time_text(eta.get('p90'))}"
    known = end if eta.get("p50") is not None else f"not known: {eta.get('reason')}"
    queue_s = eta.get("queue_s")
    return [
        ("ends about", known if eta else ""),
        ("expires first", "" if missed is None else f"probability {missed:.0%}"),
        ("next turn in", f"{queue_s:,.0f} s" if queue_s else ""),
        ("waiting", waiting_text(waiting)),
    ]


def waiting_text(waiting: dict[str, int]) -> str:
    """Return the reasons why items wait, the most frequent first."""
    ordered = sorted(waiting.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in ordered)


def _quarantine_text(until_s: int | None) -> str:
    """Return until when a job waits, and why."""
    if until_s is None:
        return ""
    return f"{time_text(until_s)}: an earlier job of yours crashed the engine too often"


def list_row(batch: Batch) -> tuple[str, ...]:
    """Return the cells under `LIST_HEADERS`."""
    job = progress_of(batch)
    counts = (str(job.ended), str(job.total))
    return (batch.id, batch.status, *counts, batch.endpoint, time_text(batch.created_at))


def time_text(epoch_s: int | None) -> str:
    """Return a time in UTC to the second, "" for None."""
    return "" if epoch_s is None else datetime.fromtimestamp(epoch_s, UTC).isoformat()


def watch_until_ended(client: Client, job: str, *, timeout_s: float | None, quiet: bool) -> Batch:
    """Show a job on stderr until it has ended. Raises the errors of `wait_until_ended`."""
    with JobDisplay(job, quiet=quiet) as display:
        return wait_until_ended(poll_job(client, job), display.show, timeout_s=timeout_s)


def poll_job(client: Client, job: str) -> Callable[[float], Batch]:
    """Return a function that retrieves a job within a timeout, for `wait_until_ended`."""

    def poll(timeout_s: float) -> Batch:
        # No retries of the client: `wait_until_ended` retries, and knows for how long.
        return client.with_options(timeout=timeout_s, max_retries=0).batches.retrieve(job)

    return poll
