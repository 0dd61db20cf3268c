"""`millrace dlq`: list and show dead letters, and redrive them as a new job."""

import json
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from cli.api_client import (
    Client,
    drop_none,
    get_json,
    path_segment,
    post_json,
    require_id,
    with_client,
)
from cli.batch.job_display import time_text
from cli.output import FormatOption, OutputFormat, print_next_page, write_output

app = typer.Typer(help="Show items that failed permanently, and execute them again.")

HEADERS = ("id", "custom id", "code", "status", "attempts", "failed", "redriven by")

BatchOption: TypeAlias = Annotated[
    str | None, typer.Option("--batch", metavar="ID", help="Only those of this job.")
]


@app.command("list")
@with_client
def list_letters(
    client: Client,
    batch: BatchOption = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Dead letters to list.")] = 20,
    after: Annotated[str | None, typer.Option(help="Continue after this one.")] = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """List dead letters: those of a job by line, those of all jobs newest first."""
    page = get_json(client, "/dead_letters", batch=batch, after=after, limit=limit)
    letters = page.get("data") or []
    write_output(output_format, letters, HEADERS, lambda: [letter_row(one) for one in letters])
    if page.get("has_more") and letters:
        print_next_page(letters[-1]["id"])


@app.command()
@with_client
def show(
    client: Client,
    letter: Annotated[
        str, typer.Argument(metavar="ID", help="The dead letter, `dead_…`.", callback=require_id)
    ],
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show a dead letter with its attempts. JSON includes the last response."""
    found = get_json(client, f"/dead_letters/{path_segment(letter)}")
    write_output(output_format, found, ("field", "value"), lambda: letter_fields(found))


@app.command()
@with_client
def redrive(
    client: Client,
    letters: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Dead letters of one job.")
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option("--batch", metavar="ID", help="All of this job that are not redriven yet."),
    ] = None,
    edit: Annotated[
        Path | None,
        typer.Option(help="JSON file: a merge patch (RFC 7396) for the body of every request."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Like --set max_tokens=64; repeatable."),
    ] = None,
    completion_window: Annotated[
        str | None, typer.Option(help="Time for the new job; default: that of the old job.")
    ] = None,
) -> None:
    """Create a job over dead letters, optionally edited, and print its id on stdout."""
    if bool(letters) == bool(batch):
        raise typer.BadParameter("give either dead letters or --batch")
    body: dict[str, Any] = {"batch": batch} if batch else {"ids": letters}
    edits = merge_edits(edit.read_bytes() if edit else b"{}", sets or [])
    body |= drop_none(edits=edits or None, completion_window=completion_window)
    typer.echo(post_json(client, "/dead_letters/redrive", body)["id"])


def merge_edits(patch: bytes, sets: list[str]) -> dict[str, Any]:
    """Return the merge patch of a file with each `PATH=VALUE` applied. Raises BadParameter.

    PATH separates keys by dots. A VALUE that is not JSON is a string.
    """
    try:
        edits = json.loads(patch)
    except ValueError:
        edits = None
    if not isinstance(edits, dict):
        raise typer.BadParameter("must hold a JSON object", param_hint="--edit")
    for text in sets:
        path, separator, value = text.partition("=")
        keys = path.split(".")
        if not separator or not all(keys):
            raise typer.BadParameter("must be PATH=VALUE", param_hint="--set")
        inner = edits
        for name in keys[:-1]:
            if not isinstance(inner.get(name), dict):
                inner[name] = {}
            inner = inner[name]
        inner[keys[-1]] = _json_or_text(value)
    try:
        json.dumps(edits, allow_nan=False)
    except ValueError:
        raise typer.BadParameter(
            "NaN and infinity are not valid JSON numbers", param_hint="--set, --edit"
        ) from None
    return edits


def letter_row(letter: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells under `HEADERS`."""
    names = ("id", "custom_id", "code", "status_code", "attempts", "failed_at", "redriven_by")
    shown = {**letter, "failed_at": time_text(letter.get("failed_at"))}
    return tuple(str(shown.get(name) or "") for name in names)


def letter_fields(letter: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the fields of a dead letter that are not empty, as (name, value)."""
    names = ("id", "batch_id", "index", "custom_id", "endpoint", "code", "message", "redriven_by")
    found = [(name.replace("_", " "), letter.get(name)) for name in names]
    attempts = [
        (
            f"attempt {attempt['attempt']}",
            f"{time_text(attempt['failed_at'])} {attempt['code']}"
            + (f" (HTTP {attempt['status_code']})" if attempt.get("status_code") else ""),
        )
        for attempt in letter.get("history") or []
    ]
    return [(name, str(value)) for name, value in [*found, *attempts] if value not in {None, ""}]


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
