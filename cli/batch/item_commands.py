"""`millrace batch items|stream|audit`: a job item by item, as it goes on, and its books."""

import sys
from typing import Annotated, Any

import typer

from cli.batch.batch_options import IdArgument
from cli.batch.job_progress import job_exit_code, progress_of
from cli.batch.job_views import time_text
from cli.batch.result_events import follow_results
from cli.client import DEFAULT_URL, KeyOption, UrlOption, connect
from cli.exits import ExitCode
from cli.output_tables import FormatOption, OutputFormat, write_json, write_table
from cli.path_ids import path_segment, require_id

_HEADERS = ("index", "custom id", "status", "attempts", "code", "worker", "finished")


def items(  # noqa: PLR0913, PLR0917  each one is an option of the command line
    job: IdArgument,
    status: Annotated[
        str | None,
        typer.Option(
            help="Only these: pending, queued, dispatched, retrying, succeeded, failed, "
            "cancelled, expired."
        ),
    ] = None,
    item: Annotated[
        str | None,
        typer.Option("--item", metavar="CUSTOM_ID", help="Only this one.", callback=require_id),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Items to list.")] = 20,
    after: Annotated[str | None, typer.Option(help="Go on behind this item.")] = None,
    form: FormatOption = OutputFormat.TABLE,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """List the items of a job with their status, in the order of its input."""
    client = connect(url, key)
    path = f"/batches/{path_segment(job)}/items"
    if item is not None:
        found = _object(client.get(f"{path}/{path_segment(item)}", cast_to=object))
        if form is OutputFormat.JSON:
            write_json(found)
        else:
            write_table(("field", "value"), item_fields(found))
        return
    asked = {"status": status, "limit": limit, "after": after}
    given = {name: value for name, value in asked.items() if value is not None}
    page = _object(client.get(path, cast_to=object, options={"params": given}))
    data = page.get("data") or []
    if form is OutputFormat.JSON:
        write_json(data)
    else:
        write_table(_HEADERS, [item_row(found) for found in data])
    if page.get("has_more"):
        typer.echo(f"more: --after {page['last_id']}", err=True)


def stream(
    job: IdArgument,
    after: Annotated[int, typer.Option(min=0, help="Go on behind this sequence.")] = 0,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Write each result to stdout as it comes, one line each, until the job has ended.

    Every line holds its `sequence`; a stream that breaks off is picked up again behind it.
    """
    client = connect(url, key)
    for event in follow_results(client, job, after):
        if not event.name:
            sys.stdout.buffer.write(event.data + b"\n")
            sys.stdout.buffer.flush()
    ended = client.batches.retrieve(job)
    raise typer.Exit(job_exit_code(progress_of(ended)))


def audit(
    job: IdArgument,
    log: Annotated[bool, typer.Option("--log", help="Hold it against the log, too.")] = False,
    form: FormatOption = OutputFormat.TABLE,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Recompute the books of a job and show them; exit code 1 says that they do not balance."""
    path = f"/batches/{path_segment(job)}/audit"
    params = {"log": "true"} if log else {}
    client = connect(url, key).with_options(timeout=300, max_retries=0)
    found = _object(client.get(path, cast_to=object, options={"params": params}))
    if form is OutputFormat.JSON:
        write_json(found)
    else:
        write_table(("book", *_BOOKS), audit_rows(found))
        for difference in differences(found):
            typer.echo(difference, err=True)
    if not found.get("ok"):
        raise typer.Exit(ExitCode.FAILED)


_BOOKS = ("succeeded", "failed", "cancelled", "expired", "ended", "input tokens", "output tokens")


def audit_rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return what each book says, one row a book."""
    conservation, usage = found["conservation"], found["usage"]
    books = [("rows", conservation["rows"], usage["rows"])]
    books.append(("counters", conservation["counters"], usage["counters"]))
    books.append(("ledger", {}, usage["ledger"]))
    if found["log"] is not None:
        books.append(("log", found["log"]["results"], found["log"]["usage"]))
    rows = [
        (name, *(_text({**counts, **tokens}, column) for column in _BOOKS))
        for name, counts, tokens in books
    ]
    total = str(conservation["input"])
    return [*rows, ("input", "", "", "", "", total, "", "")]


def differences(found: dict[str, Any]) -> list[str]:
    """Return one line for each way in which the books differ."""
    lines = []
    for difference in found["differences"]:
        said = ", ".join(f"{book} {count}" for book, count in difference.items() if book != "what")
        lines.append(f"{difference['what']}: {said}")
    log = found["log"]
    if log is None:
        return lines
    if not log["is_whole"]:
        why = "was not read in time" if log["holds_first_record"] else "begins after the job"
        lines.append(f"log: {why}, so its items were not compared")
    for kind, named in log["differences"].items():
        if named["count"]:
            some = ", ".join(named["items"][:3])
            lines.append(f"{kind.replace('_', ' ')}: {named['count']}, first {some}")
    return lines


def item_row(item: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of an item in a list."""
    return (
        str(item["index"]),
        item["custom_id"] or "",
        item["status"],
        str(item["attempts"]),
        _code(item),
        item["worker"] or "",
        time_text(item["finished_at"]),
    )


def item_fields(item: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what is known of an item as (field, value), without what is empty."""
    shown = {**item, "error": _code(item), "finished_at": time_text(item["finished_at"])}
    usage = shown.pop("usage") or {}
    shown["tokens"] = f"{usage['input_tokens']} in, {usage['output_tokens']} out" if usage else ""
    failures = shown.pop("failures")
    rows = [(name.replace("_", " "), str(value)) for name, value in shown.items() if value != ""]
    rows += [
        ("failed", f"attempt {f['attempt']}: {f['code']}, {time_text(f['failed_at'])}")
        for f in failures
    ]
    return [row for row in rows if row[1] != "None"]


def _code(item: dict[str, Any]) -> str:
    if item["error"]:
        return str(item["error"]["code"])
    return str(item["status_code"] or "")


def _text(book: dict[str, Any], column: str) -> str:
    value = book.get(column.replace(" ", "_"))
    return "" if value is None else str(value)


def _object(answer: object) -> dict[str, Any]:
    return answer if isinstance(answer, dict) else {}
