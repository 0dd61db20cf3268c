"""`millrace webhooks`: manages endpoints, lists deliveries and replays messages."""

from typing import Annotated, Any, TypeAlias

import typer

from cli.api_paths import quote_id, validate_id
from cli.batch.job_views import time_text
from cli.client import DEFAULT_URL, KeyOption, UrlOption, connect, json_object
from cli.exits import EXIT_CODES_HELP
from cli.output import OutputFormat, OutputFormatOption, write_json, write_table

app = typer.Typer(
    no_args_is_help=True,
    help="Register URLs that are told of jobs, look at deliveries, send again.",
    epilog=EXIT_CODES_HELP,
)

IdArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The endpoint, `whe_…`, a job's callback too.", callback=validate_id
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
    made = json_object(connect(url, key).post("/webhook_endpoints", body=body, cast_to=object))
    typer.echo(f"{made['id']} {made['signing_secret']}")


@app.command("list")
def list_endpoints(
    form: OutputFormatOption = OutputFormat.TABLE, url: UrlOption = DEFAULT_URL, key: KeyOption = ""
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
    form: OutputFormatOption = OutputFormat.TABLE,
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
        answer = json_object(client.post(f"{_path(endpoint)}/replay", body=body, cast_to=object))
        count += answer["replayed"]
        has_more = answer["has_more"]
        body["after"] = answer["last_id"]
    typer.echo(str(count))


def state_text(endpoint: dict[str, Any]) -> str:
    """Return `enabled`, or the reason why the endpoint is disabled."""
    ours = endpoint.get("millrace") or {}
    return "enabled" if ours.get("enabled", True) else f"disabled: {ours.get('disabled_reason')}"


def last_try_text(delivery: dict[str, Any]) -> str:
    """Return the status or error code of the last try; empty before the first."""
    if not delivery["attempts"]:
        return ""
    last = delivery["attempts"][-1]
    return str(last["status_code"] or last["error_code"])


def _path(endpoint: str) -> str:
    return f"/webhook_endpoints/{quote_id(endpoint)}"


def _data(answer: object) -> list[dict[str, Any]]:
    found = json_object(answer).get("data")
    return found if isinstance(found, list) else []
