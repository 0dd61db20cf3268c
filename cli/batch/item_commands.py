"""`millrace batch items|stream|audit`: the items, results and books of a job."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final

import typer

from cli.api_client import (
    Client,
    get_json,
    path_segment,
    require_id,
    transient_errors,
    with_client,
    with_stream_timeout,
)
from cli.batch.batch_commands import IdArgument
from cli.batch.job_display import time_text
from cli.batch.job_progress import job_exit_code, progress_of
from cli.exits import CommandError, ExitCode
from cli.output import FormatOption, OutputFormat, print_next_page, write_output

_ITEM_HEADERS = (
    "index",
    "custom id",
    "status",
    "waits for",
    "attempts",
    "code",
    "worker",
    "finished",
)
_BOOK_COLUMNS = (
    "succeeded",
    "failed",
    "cancelled",
    "expired",
    "ended",
    "input tokens",
    "output tokens",
)
_AUDIT_TIMEOUT_S = 300


@with_client
def items(  # noqa: PLR0913, PLR0917  each one is an option of the command line
    client: Client,
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
    after: Annotated[str | None, typer.Option(help="Continue after this item.")] = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """List the items of a job with their status, in input order."""
    path = f"/batches/{path_segment(job)}/items"
    if item is not None:
        found = get_json(client, f"{path}/{path_segment(item)}")
        write_output(output_format, found, ("field", "value"), lambda: item_fields(found))
        return
    page = get_json(client, path, status=status, limit=limit, after=after)
    data = page.get("data") or []
    write_output(output_format, data, _ITEM_HEADERS, lambda: [item_row(one) for one in data])
    if page.get("has_more"):
        print_next_page(page["last_id"])


@with_client
def stream(
    client: Client,
    job: IdArgument,
    after: Annotated[int, typer.Option(min=0, help="Continue after this sequence.")] = 0,
) -> None:
    """Write each result to stdout as it arrives, one line each, until the job has ended.

    Every line contains its `sequence`; an interrupted stream is resumed after the last one.
    """
    for event in follow_results(client, job, after):
        if not event.name:
            sys.stdout.buffer.write(event.data + b"\n")
            sys.stdout.buffer.flush()
    ended = client.batches.retrieve(job)
    raise typer.Exit(job_exit_code(progress_of(ended)))


@with_client
def audit(
    client: Client,
    job: IdArgument,
    log: Annotated[bool, typer.Option("--log", help="Compare with the log, too.")] = False,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Recompute the counts and the bill of a job; exit code 1 when they do not agree."""
    path = f"/batches/{path_segment(job)}/audit"
    patient = client.with_options(timeout=_AUDIT_TIMEOUT_S, max_retries=0)
    found = get_json(patient, path, log="true" if log else None)
    write_output(output_format, found, ("book", *_BOOK_COLUMNS), lambda: audit_rows(found))
    if output_format is OutputFormat.TABLE:
        for difference in differences(found):
            typer.echo(difference, err=True)
    if not found.get("ok"):
        raise typer.Exit(ExitCode.FAILED)


def audit_rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return one row of counts and tokens for each book, and one for the input."""
    conservation, usage = found["conservation"], found["usage"]
    books = [("rows", conservation["rows"], usage["rows"])]
    books.append(("counters", conservation["counters"], usage["counters"]))
    books.append(("ledger", {}, usage["ledger"]))
    if found["log"] is not None:
        books.append(("log", found["log"]["results"], found["log"]["usage"]))
    rows = [
        (name, *(_cell({**counts, **tokens}, column) for column in _BOOK_COLUMNS))
        for name, counts, tokens in books
    ]
    total = str(conservation["input"])
    return [*rows, ("input", "", "", "", "", total, "", "")]


def differences(found: dict[str, Any]) -> list[str]:
    """Return one line for each difference between the books."""
    lines = []
    for difference in found["differences"]:
        counts = [f"{book} {count}" for book, count in difference.items() if book != "what"]
        lines.append(f"{difference['what']}: {', '.join(counts)}")
    log = found["log"]
    if log is None:
        return lines
    if not log["is_whole"]:
        why = "was not read in time" if log["holds_first_record"] else "begins after the job"
        lines.append(f"log: {why}, so its items were not compared")
    for kind, named in log["differences"].items():
        if named["count"]:
            first = ", ".join(named["items"][:3])
            lines.append(f"{kind.replace('_', ' ')}: {named['count']}, first {first}")
    return lines


def item_row(item: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of an item in a list."""
    return (
        str(item["index"]),
        item["custom_id"] or "",
        item["status"],
        item.get("waiting_reason") or "",
        str(item["attempts"]),
        _code(item),
        item["worker"] or "",
        time_text(item["finished_at"]),
    )


def item_fields(item: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the fields of an item that are not empty, as (name, value)."""
    shown = {**item, "error": _code(item), "finished_at": time_text(item["finished_at"])}
    usage = shown.pop("usage") or {}
    shown["tokens"] = f"{usage['input_tokens']} in, {usage['output_tokens']} out" if usage else ""
    stages = shown.pop("stages") or {}
    shown["stages"] = ", ".join(f"{n.removesuffix('_s')} {s:g} s" for n, s in stages.items())
    failures = shown.pop("failures")
    rows = [(n.replace("_", " "), str(v)) for n, v in shown.items() if str(v) not in {"", "None"}]
    return rows + [
        ("failed", f"attempt {f['attempt']}: {f['code']}, {time_text(f['failed_at'])}")
        for f in failures
    ]


def _code(item: dict[str, Any]) -> str:
    if item["error"]:
        return str(item["error"]["code"])
    return str(item["status_code"] or "")


def _cell(book: dict[str, Any], column: str) -> str:
    value = book.get(column.replace(" ", "_"))
    return "" if value is None else str(value)


_TRIES_MAX: Final = 30
"""Consecutive interruptions without a result; a restart of the API causes fewer."""

_PAUSE_S: Final = 1.0


class StreamBrokenError(CommandError):
    """The result stream was interrupted too often."""


@dataclass(frozen=True, slots=True)
class ResultEvent:
    """One server-sent event of the result stream."""

    name: str  # empty for a result
    sequence: int
    data: bytes


def follow_results(client: Client, job: str, after: int) -> Iterator[ResultEvent]:
    """Yield each result after the sequence `after` once, then the event of the job's end.

    Yields nothing when there are no more events. Transient errors are retried. Raises the last
    error of the client, or StreamBrokenError.
    """
    import openai

    path = f"/batches/{path_segment(job)}/results"
    headers = {
        "accept": "text/event-stream",
        "x-stainless-raw-response": "stream",  # makes the client return the unread response
    }
    streaming = with_stream_timeout(client).with_options(max_retries=0)
    tries, last_error = 0, Exception()
    while tries < _TRIES_MAX:
        try:
            opened = streaming.get(
                path,
                cast_to=openai.APIResponse[bytes],
                options={"headers": {**headers, "last-event-id": str(after)}},
            )
            with closing(opened) as response:
                if response.status_code == HTTPStatus.NO_CONTENT:
                    return
                for event in parse_events(response.iter_bytes()):
                    after, tries = event.sequence, 0
                    yield event
                    if event.name:
                        return
        except transient_errors() as error:
            last_error = error
        tries += 1
        time.sleep(_PAUSE_S)
    if isinstance(last_error, openai.APIStatusError):
        raise last_error
    raise StreamBrokenError


def parse_events(blocks: Iterable[bytes]) -> Iterator[ResultEvent]:
    """Yield the complete events of a byte stream; comments are skipped."""
    rest = b""
    for block in blocks:
        *complete, rest = (rest + block).split(b"\n\n")
        for text in complete:
            fields = dict(_field(line) for line in text.split(b"\n") if not line.startswith(b":"))
            if b"data" in fields:
                name, sequence = fields.get(b"event", b""), fields.get(b"id", b"0")
                yield ResultEvent(name.decode(), int(sequence), fields[b"data"])


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name, value.removeprefix(b" ")
