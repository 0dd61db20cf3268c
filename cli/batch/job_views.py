"""Formats a job for `status`, `list` and the end of a wait."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cli.api_client import extension_fields
from cli.batch.job_progress import progress_of

if TYPE_CHECKING:
    from openai.types import Batch

ERRORS_SHOWN_MAX = 5
LIST_HEADERS = ("id", "status", "ended", "total", "endpoint", "created")


def print_outcome(batch: "Batch", output: Path | None, errors: Path | None) -> None:
    """Print on stderr how the job ended and where its output and error files are."""
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
    """Print on stderr why the validation of the job's input failed, if it did."""
    for line in _validation_errors(batch):
        typer.echo(line, err=True)


def _validation_errors(batch: "Batch") -> list[str]:
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


def status_rows(batch: "Batch") -> list[tuple[str, str]]:
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


def _control_rows(batch: "Batch") -> list[tuple[str, str]]:
    """Return the control fields that differ from those of an ordinary job."""
    extension = extension_fields(batch)
    files = [str(file["state"]) for file in extension.get("appended_files") or ()]
    is_sealed = extension.get("sealed", True)
    return [
        ("paused", time_text(extension.get("paused_at"))),
        ("closed by", extension.get("close_reason") or ""),
        ("sealed", "" if is_sealed else "no: it waits for more files, or for a seal"),
        ("appended", ", ".join(files)),
        ("copies", str(extension.get("deduplicated_items") or "")),
    ]


def list_row(batch: "Batch") -> tuple[str, ...]:
    """Return the cells under `LIST_HEADERS`."""
    job = progress_of(batch)
    counts = (str(job.ended), str(job.total))
    return (batch.id, batch.status, *counts, batch.endpoint, time_text(batch.created_at))


def time_text(epoch_s: int | None) -> str:
    """Return a time in UTC to the second, "" for None."""
    return "" if epoch_s is None else datetime.fromtimestamp(epoch_s, UTC).isoformat()
