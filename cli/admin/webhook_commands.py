"""`millrace webhooks`: endpoints, what became of their messages, and sending again."""

from typing import Annotated, Any, TypeAlias

import typer

from cli.batch.job_views import time_text
from cli.client import DEFAULT_URL, KeyOption, UrlOption, connect
from cli.exits import EXIT_CODES_HELP
from cli.output_tables import FormatOption, OutputFormat, write_json, write_table
from cli.path_ids import path_segment, require_id

app = typer.Typer(
    no_args_is_help=True,
    help="Register URLs that are told of jobs, look at deliveries, send again.",
    epilog=EXIT_CODES_HELP,
)

IdArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The endpoint, `whe_…`, a job's callback too.", callback=require_id
    ),
]


@app.command()
def create(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="URL of the receiver.")],
    events: Annotated[str, typer.Option(help="Comma-separated event types.")] = "batch.completed",
    name: Annotated[str, typer.Option(help="To tell endpoints apart.")] = "cli",
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Add an endpoint. Its secret is shown once, on stdout behind its id."""
    body = {
        "name": name,
        "url": target,
        "event_types": [event.strip() for event in events.split(",")],
    }
    made = _object(connect(url, key).post("/webhook_endpoints", body=body, cast_to=object))
    typer.echo(f"{made['id']} {made['signing_secret']}")


@app.command("list")
def list_endpoints(
    form: FormatOption = OutputFormat.TABLE, url: UrlOption = DEFAULT_URL, key: KeyOption = ""
) -> None:
    """List the newest endpoints, 100 at most."""
    found = _data(connect(url, key).get("/webhook_endpoints?limit=100", cast_to=object))
    if form is OutputFormat.JSON:
        write_json(found)
        return
    write_table(
        ("id", "name", "state", "events", "url"),
        [(e["id"], e["name"], state_text(e), ",".join(e["event_types"]), e["url"]) for e in found],
    )


@app.command()
def deliveries(
    endpoint: IdArgument,
    form: FormatOption = OutputFormat.TABLE,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """List the newest deliveries of an endpoint with how their last try went, 100 at most."""
    path = f"{_path(endpoint)}/deliveries?limit=100"
    found = _data(connect(url, key).get(path, cast_to=object))
    if form is OutputFormat.JSON:
        write_json(found)
        return
    write_table(
        ("id", "event", "batch", "status", "tries", "last try", "next try"),
        [
            (
                d["id"],
                d["event_type"],
                d["batch_id"] or "",
                d["status"],
                str(len(d["attempts"])),
                last_try_text(d),
                time_text(d["next_try_at"]),
            )
            for d in found
        ],
    )


@app.command()
def replay(  # noqa: PLR0913, PLR0917  each one is an option of the command line
    endpoint: IdArgument,
    message: Annotated[str | None, typer.Option(help="One message, `evt_…`.")] = None,
    since: Annotated[int | None, typer.Option(help="All from here: seconds since 1970.")] = None,
    until: Annotated[int | None, typer.Option(help="And before here.")] = None,
    failed_only: Annotated[bool, typer.Option("--failed-only", help="None delivered yet.")] = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Send one message again, or those of a span, with the same ids; print how many."""
    body = {"message_id": message, "since": since, "until": until, "failed_only": failed_only}
    client = connect(url, key)
    count, has_more = 0, True
    while has_more:
        answer = _object(client.post(f"{_path(endpoint)}/replay", body=body, cast_to=object))
        count += answer["replayed"]
        has_more = answer["has_more"]
        body["after"] = answer["last_id"]
    typer.echo(str(count))


def state_text(endpoint: dict[str, Any]) -> str:
    """Return `enabled`, or why an endpoint is not."""
    ours = endpoint.get("millrace") or {}
    return "enabled" if ours.get("enabled", True) else f"disabled: {ours.get('disabled_reason')}"


def last_try_text(delivery: dict[str, Any]) -> str:
    """Return the status of the last answer, or why there was none; empty before the first try."""
    if not delivery["attempts"]:
        return ""
    last = delivery["attempts"][-1]
    return str(last["status_code"] or last["error_code"])


def _path(endpoint: str) -> str:
    return f"/webhook_endpoints/{path_segment(endpoint)}"


def _object(answer: object) -> dict[str, Any]:
    return answer if isinstance(answer, dict) else {}


def _data(answer: object) -> list[dict[str, Any]]:
    found = _object(answer).get("data")
    return found if isinstance(found, list) else []
