"""`millrace bench-online`: how fast online calls are answered, seen from a client."""

import json
from collections.abc import Sequence
from typing import Annotated

import typer
import uvloop

from cli.chat.default_model import first_chat_model
from cli.client import DEFAULT_URL, KeyOption, UrlOption, api_base, checked_key, connect
from cli.exits import ExitCode
from cli.load.load_clients import LoadResult, percentile, run_load
from cli.load.load_connection import LoadTarget
from cli.output_tables import FormatOption, OutputFormat, write_json, write_table

_SHARES = (0.5, 0.95, 0.99)


def bench_online(  # noqa: PLR0913, PLR0917  each one is an option of the command line
    clients: Annotated[int, typer.Option(min=1, max=10_000, help="Clients at once.")] = 8,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="How long.")] = 10.0,
    stream: Annotated[
        bool, typer.Option("--stream/--unary", help="Streamed answers, or whole ones.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="Name of the model; else the first one that chats.")
    ] = None,
    prompt: Annotated[str, typer.Option(help="What every call asks.")] = "Say hello.",
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 16,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one call.")] = 60.0,
    form: FormatOption = OutputFormat.TABLE,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Call a model from many clients, each one call after the other, and print what they saw.

    Times are of calls that succeeded; errors are counted by status and code. This client shares
    the machine with the server if it runs there. Exit code 1 when no call succeeded.
    """
    with connect(url, key) as client:
        name = model or first_chat_model(client)
    body = {
        "model": name,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "stream": stream,
    }
    target = LoadTarget(api_base(url), checked_key(key), json.dumps(body).encode())
    seen = uvloop.run(
        run_load(target, client_count=clients, seconds=seconds, call_timeout_s=timeout)
    )
    found = {"model": name, "clients": clients, "stream": stream, **result(seen, stream=stream)}
    if form is OutputFormat.JSON:
        write_json(found)
    else:
        write_table(("measure", "value"), result_rows(found))
    if not seen.latencies_s:
        raise typer.Exit(ExitCode.FAILED)


def result(seen: LoadResult, *, stream: bool) -> dict[str, object]:
    """Return the measures by name; times in milliseconds, none without a call that succeeded."""
    measures: dict[str, object] = {
        "seconds": round(seen.seconds, 3),
        "calls": len(seen.latencies_s),
        "calls_per_s": round(seen.calls_per_s, 1),
        "latency_ms": _percentiles(seen.latencies_s),
    }
    if stream:
        measures["first_piece_ms"] = _percentiles(seen.first_waits_s)
        measures["pieces_per_s"] = round(seen.event_count / seen.seconds, 1)
    measures["errors"] = dict(seen.errors.most_common())
    return measures


def result_rows(found: dict[str, object]) -> list[tuple[str, str]]:
    """Return the measures for people: one row each, percentiles and errors one row each too."""
    rows: list[tuple[str, str]] = []
    for name, value in found.items():
        shown = name.replace("_per_s", "/s").replace("_ms", ", ms").replace("_", " ")
        if isinstance(value, dict):
            rows += [(f"{shown}, {key}", str(part)) for key, part in value.items()]
        else:
            rows.append((shown, str(value)))
    return rows


def _percentiles(values_s: Sequence[float]) -> dict[str, float]:
    if not values_s:
        return {}
    return {f"p{share * 100:g}": round(percentile(values_s, share) * 1000, 2) for share in _SHARES}
