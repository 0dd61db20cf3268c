"""`millrace webhooks`: endpoints, their deliveries and replays."""

from typing import Annotated, Any, TypeAlias

import typer

from cli.api_client import Client, get_json, path_segment, post_json, require_id, with_client
from cli.batch.job_display import time_text
from cli.output import FormatOption, OutputFormat, write_output

app = typer.Typer(help="Register URLs for notifications of jobs, list deliveries, replay messages.")

IdArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The endpoint, `whe_…`, also of a job's callback.", callback=require_id
    ),
]

_ENDPOINT_HEADERS = ("id", "name", "state", "events", "url")
_DELIVERY_HEADERS = ("id", "event", "batch", "status", "tries", "last try", "next try")


@app.command()
@with_client
def create(
    client: Client,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="URL of the receiver.")],
    events: Annotated[str, typer.Option(help="Comma-separated event types.")] = "batch.completed",
    name: Annotated[str, typer.Option(help="Name of the endpoint in lists.")] = "cli",
) -> None:
    """Add an endpoint. Prints its id and its secret, which is shown only once."""
    event_types = [event.strip() for event in events.split(",")]
    body = {"name": name, "url": target, "event_types": event_types}
    created = post_json(client, "/webhook_endpoints", body)
    typer.echo(f"{created['id']} {created['signing_secret']}")


@app.command("list")
@with_client
def list_endpoints(client: Client, output_format: FormatOption = OutputFormat.TABLE) -> None:
    """List the newest endpoints, at most 100."""
    found = get_json(client, "/webhook_endpoints", limit=100).get("data") or []
    write_output(output_format, found, _ENDPOINT_HEADERS, lambda: [_endpoint_row(e) for e in found])


@app.command()
@with_client
def deliveries(
    client: Client, endpoint: IdArgument, output_format: FormatOption = OutputFormat.TABLE
) -> None:
    """List the newest deliveries of an endpoint with their last attempts, at most 100."""
    found = get_json(client, f"{_path(endpoint)}/deliveries", limit=100).get("data") or []
    write_output(output_format, found, _DELIVERY_HEADERS, lambda: [_delivery_row(d) for d in found])


@app.command()
@with_client
def replay(
    client: Client,
    endpoint: IdArgument,
    message: Annotated[str | None, typer.Option(help="One message, `evt_…`.")] = None,
    since: Annotated[int | None, typer.Option(help="From this time: seconds since 1970.")] = None,
    until: Annotated[int | None, typer.Option(help="Before this time.")] = None,
    failed_only: Annotated[
        bool, typer.Option("--failed-only", help="Only messages not delivered yet.")
    ] = False,
) -> None:
    """Send one message again, or those of a time range, with the same ids; print how many."""
    body = {"message_id": message, "since": since, "until": until, "failed_only": failed_only}
    count, has_more = 0, True
    while has_more:
        page = post_json(client, f"{_path(endpoint)}/replay", body)
        count += page["replayed"]
        has_more = page["has_more"]
        body["after"] = page["last_id"]
    typer.echo(str(count))


def state_text(endpoint: dict[str, Any]) -> str:
    """Return `enabled`, or why the endpoint is disabled."""
    extension = endpoint.get("millrace") or {}
    if extension.get("enabled", True):
        return "enabled"
    return f"disabled: {extension.get('disabled_reason')}"


def last_try_text(delivery: dict[str, Any]) -> str:
    """Return the status of the last response, or its error code; "" before the first attempt."""
    if not delivery["attempts"]:
        return ""
    last = delivery["attempts"][-1]
    return str(last["status_code"] or last["error_code"])


def _endpoint_row(endpoint: dict[str, Any]) -> tuple[str, ...]:
    events = ",".join(endpoint["event_types"])
    return (endpoint["id"], endpoint["name"], state_text(endpoint), events, endpoint["url"])


def _delivery_row(delivery: dict[str, Any]) -> tuple[str, ...]:
    return (
        delivery["id"],
        delivery["event_type"],
        delivery["batch_id"] or "",
        delivery["status"],
        str(len(delivery["attempts"])),
        last_try_text(delivery),
        time_text(delivery["next_try_at"]),
    )


def _path(endpoint: str) -> str:
    return f"/webhook_endpoints/{path_segment(endpoint)}"
