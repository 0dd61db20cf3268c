"""A job in words: what `status`, `list` and the end of a wait show."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cli.batch.job_progress import progress_of

if TYPE_CHECKING:
    from openai.types import Batch

ERRORS_SHOWN_MAX = 5
LIST_HEADERS = ("id", "status", "ended", "total", "endpoint", "created")


def print_outcome(batch: "Batch", output: Path | None, errors: Path | None) -> None:
    """Say on stderr how the job ended and where its two files are."""
    job = progress_of(batch)
    counts = f"{job.succeeded} of {job.total} succeeded, {job.failed} failed, "
    counts += f"{job.cancelled} cancelled, {job.expired} expired"
    typer.echo(f"{batch.id} {job.state}" + (f": {counts}" if job.total else ""), err=True)
    print_validation_errors(batch)
    fetch = f"millrace batch results {batch.id}"
    if batch.output_file_id:
        typer.echo(f"results: {output or f'{fetch} -o FILE'}", err=True)
    if batch.error_file_id:
        typer.echo(f"errors: {errors or f'{fetch} -o FILE --errors FILE'}", err=True)


def print_validation_errors(batch: "Batch") -> None:
    """Say on stderr why the job's input was refused, if it was."""
    for problem in _problems(batch):
        typer.echo(problem, err=True)


def _problems(batch: "Batch") -> list[str]:
    """Return the first validation errors, one sentence each."""
    found = (batch.errors.data if batch.errors else None) or []
    shown = [
        f"line {e.line}: {e.message} ({e.code})" if e.line else f"{e.message} ({e.code})"
        for e in found[:ERRORS_SHOWN_MAX]
    ]
    own = (batch.model_extra or {}).get("millrace") or {}
    left = max(len(found), int(own.get("error_count", 0))) - len(shown)
    return (
        [*shown, f"and {left} more: `millrace batch status {batch.id} -o json`"] if left else shown
    )


def status_rows(batch: "Batch") -> list[tuple[str, str]]:
    """Return what is known of a job as (field, value), without what is empty."""
    job = progress_of(batch)
    tokens = (
        f"{batch.usage.input_tokens} in, {batch.usage.output_tokens} out" if batch.usage else ""
    )
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
        ("tokens", tokens),
        *_control_rows(batch),
        ("created", time_text(batch.created_at)),
        ("expires", time_text(batch.expires_at)),
        ("input file", batch.input_file_id),
        ("output file", batch.output_file_id or ""),
        ("error file", batch.error_file_id or ""),
    ]
    return [row for row in rows if row[1]] + [("error", text) for text in _problems(batch)]


def _control_rows(batch: "Batch") -> list[tuple[str, str]]:
    """Return what its owner controls, where it is not as it mostly is."""
    own = (batch.model_extra or {}).get("millrace") or {}
    files = [str(file["state"]) for file in own.get("appended_files") or ()]
    return [
        ("paused", time_text(own.get("paused_at"))),
        ("closed by", own.get("close_reason") or ""),
        ("sealed", "" if own.get("sealed", True) else "no: it waits for more files, or for a seal"),
        ("appended", ", ".join(files)),
        ("copies", str(own.get("deduplicated_items") or "")),
    ]


def list_row(batch: "Batch") -> tuple[str, ...]:
    """Return the cells under `LIST_HEADERS`."""
    job = progress_of(batch)
    counts = (str(job.ended), str(job.total))
    return (batch.id, batch.status, *counts, batch.endpoint, time_text(batch.created_at))


def time_text(epoch_s: int | None) -> str:
    """Return a time in UTC to the second."""
    return "" if epoch_s is None else datetime.fromtimestamp(epoch_s, UTC).isoformat()
