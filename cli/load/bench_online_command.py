"""`millrace bench-online`: latency and rate of online calls, measured by a client."""

import json
from collections.abc import Sequence
from typing import Annotated

import typer
import uvloop

from cli.api_client import Client, first_chat_model, with_client
from cli.exits import ExitCode
from cli.load.load_client import LoadMeasurement, LoadTarget, percentile, run_load
from cli.output import FormatOption, OutputFormat, write_output

_PERCENTILES = (0.5, 0.95, 0.99)


@with_client
def bench_online(  # noqa: PLR0913, PLR0917  each one is an option of the command line
    client: Client,
    clients: Annotated[int, typer.Option(min=1, max=10_000, help="Concurrent clients.")] = 8,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Duration.")] = 10.0,
    stream: Annotated[
        bool, typer.Option("--stream/--unary", help="Streamed or complete responses.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="Name of the model; default: the first that serves chat.")
    ] = None,
    prompt: Annotated[str, typer.Option(help="Prompt of every call.")] = "Say hello.",
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer in tokens.")] = 16,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one call.")] = 60.0,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Call a model from concurrent clients, each one call after the other; print the latencies.

    Times are of successful calls; errors are counted by status and code. If the server runs on
    this machine, the client competes with it for CPU. Exit code 1 when no call succeeded.
    """
    name = model or first_chat_model(client)
    body = {
        "model": name,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "stream": stream,
    }
    url = f"{client.base_url}chat/completions"
    target = LoadTarget(url, client.api_key, json.dumps(body).encode())
    result = uvloop.run(
        run_load(target, client_count=clients, seconds=seconds, call_timeout_s=timeout)
    )
    shown = {"model": name, "clients": clients, "stream": stream, **measures(result, stream=stream)}
    write_output(output_format, shown, ("measure", "value"), lambda: measure_rows(shown))
    if not result.latencies_s:
        raise typer.Exit(ExitCode.FAILED)


def measures(result: LoadMeasurement, *, stream: bool) -> dict[str, object]:
    """Return the measures by name. Times are in milliseconds, empty without a successful call."""
    by_name: dict[str, object] = {
        "seconds": round(result.seconds, 3),
        "calls": len(result.latencies_s),
        "calls_per_s": round(result.calls_per_s, 1),
        "latency_ms": _percentiles(result.latencies_s),
    }
    if stream:
        by_name["first_piece_ms"] = _percentiles(result.first_waits_s)
        by_name["pieces_per_s"] = round(result.event_count / result.seconds, 1)
    by_name["errors"] = dict(result.errors.most_common())
    return by_name


def measure_rows(by_name: dict[str, object]) -> list[tuple[str, str]]:
    """Return (name, value) rows, with one row for each percentile and each error."""
    rows: list[tuple[str, str]] = []
    for name, value in by_name.items():
        label = name.replace("_per_s", "/s").replace("_ms", ", ms").replace("_", " ")
        if isinstance(value, dict):
            rows += [(f"{label}, {key}", str(part)) for key, part in value.items()]
        else:
            rows.append((label, str(value)))
    return rows


def _percentiles(values_s: Sequence[float]) -> dict[str, float]:
    if not values_s:
        return {}
    return {
        f"p{share * 100:g}": round(percentile(values_s, share) * 1000, 2) for share in _PERCENTILES
    }
