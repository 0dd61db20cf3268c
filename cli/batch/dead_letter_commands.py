"""`millrace dlq`: items that failed for good, and a new job that runs them again."""

import json
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from cli.batch.job_views import time_text
from cli.client import DEFAULT_URL, KeyOption, UrlOption, connect
from cli.exits import EXIT_CODES_HELP
from cli.output_tables import FormatOption, OutputFormat, write_json, write_table
from cli.path_ids import path_segment, require_id

app = typer.Typer(
    no_args_is_help=True,
    help="Look at items that failed for good, and run them again.",
    epilog=EXIT_CODES_HELP,
)

HEADERS = ("id", "custom id", "code", "status", "attempts", "failed", "redriven by")

BatchOption: TypeAlias = Annotated[
    str | None, typer.Option("--batch", metavar="ID", help="Only those of this job.")
]


@app.command("list")
def list_letters(
    batch: BatchOption = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Dead letters to list.")] = 20,
    after: Annotated[str | None, typer.Option(help="Go on behind this one.")] = None,
    form: FormatOption = OutputFormat.TABLE,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """List dead letters: of a job in the order of its lines, of all jobs the newest first."""
    asked = {"batch": batch, "after": after, "limit": limit}
    page = _object(
        connect(url, key).get(
            "/dead_letters",
            cast_to=object,
            options={"params": {name: value for name, value in asked.items() if value is not None}},
        )
    )
    letters = page.get("data") or []
    if form is OutputFormat.JSON:
        write_json(letters)
    else:
        write_table(HEADERS, [row(letter) for letter in letters])
    if page.get("has_more") and letters:
        typer.echo(f"more: --after {letters[-1]['id']}", err=True)


@app.command()
def show(
    letter: Annotated[
        str, typer.Argument(metavar="ID", help="The dead letter, `dead_…`.", callback=require_id)
    ],
    form: FormatOption = OutputFormat.TABLE,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Show one with the attempts that ended. JSON holds its last answer, too."""
    path = f"/dead_letters/{path_segment(letter)}"
    found = _object(connect(url, key).get(path, cast_to=object))
    if form is OutputFormat.JSON:
        write_json(found)
    else:
        write_table(("field", "value"), fields(found))


@app.command()
def redrive(  # noqa: PLR0913, PLR0917  each one is an option of the command line
    letters: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Dead letters of one job.")
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option("--batch", metavar="ID", help="All of this job that were not redriven yet."),
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
        str | None, typer.Option(help="Time for all of it; else as the old job had.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Create a job of dead letters, their requests edited, and print its id on stdout."""
    if bool(letters) == bool(batch):
        raise typer.BadParameter("give either dead letters or --batch")
    asked: dict[str, Any] = {"batch": batch} if batch else {"ids": letters}
    edits = edits_of(edit.read_bytes() if edit else b"{}", sets or [])
    if edits:
        asked["edits"] = edits
    if completion_window is not None:
        asked["completion_window"] = completion_window
    client = connect(url, key)
    created = _object(client.post("/dead_letters/redrive", body=asked, cast_to=object))
    typer.echo(created["id"])


def edits_of(patch: bytes, sets: list[str]) -> dict[str, Any]:
    """Return the merge patch of a file and of `PATH=VALUE`s, which win. Raises BadParameter.

    A path names keys with dots between them. A value that is no JSON is a string.
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
        inner[keys[-1]] = _value(value)
    try:
        json.dumps(edits, allow_nan=False)
    except ValueError:
        raise typer.BadParameter(
            "NaN and infinity are no numbers of JSON", param_hint="--set, --edit"
        ) from None
    return edits


def row(letter: dict[str, Any]) -> tuple[str, ...]:
    """Return a line of the list."""
    return (
        str(letter.get("id")),
        str(letter.get("custom_id") or ""),
        str(letter.get("code") or ""),
        str(letter.get("status_code") or ""),
        str(letter.get("attempts") or ""),
        time_text(letter.get("failed_at")),
        str(letter.get("redriven_by") or ""),
    )


def fields(letter: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what is known of one as (field, value), without what is empty."""
    names = ("id", "batch_id", "index", "custom_id", "endpoint", "code", "message", "redriven_by")
    found = [(name.replace("_", " "), letter.get(name)) for name in names]
    tries = [
        (
            f"attempt {tried['attempt']}",
            f"{time_text(tried['failed_at'])} {tried['code']}"
            + (f" (HTTP {tried['status_code']})" if tried.get("status_code") else ""),
        )
        for tried in letter.get("history") or []
    ]
    return [(name, str(value)) for name, value in [*found, *tries] if value not in {None, ""}]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _object(answer: object) -> dict[str, Any]:
    return answer if isinstance(answer, dict) else {}
