"""`millrace tenants`: create, update and list tenants, and set up their response cache."""

from typing import Annotated, Any

import sqlalchemy as sa
import typer

from cli.admin.operator_connections import DataOption, transaction
from cli.output import FormatOption, OutputFormat, write_output
from core.ids import TENANT, public_id
from tenancy.response_cache import TTL_S_MAX, set_response_cache
from tenancy.tables import tenants
from tenancy.tenants import create_tenant, find_tenant, set_call_timeout, set_zero_retention

app = typer.Typer(
    no_args_is_help=True,
    help="Create, list and set up tenants. For operators: connects to Postgres.",
)

_HEADERS = ("name", "id", "bytes at most", "cache", "zero retention", "calls at most", "created")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="A unique name.")],
    stored_bytes_max: Annotated[
        int | None,
        typer.Option(min=0, max=2**63 - 1, help="Bytes of files it may store; else the default."),
    ] = None,
    zero_retention: Annotated[
        bool, typer.Option("--zero-retention", help="Retain nothing but the ledger.")
    ] = False,
    data: DataOption = None,
) -> None:
    """Create a tenant and print its id. Next: `millrace keys create --tenant NAME`."""
    with transaction(data) as connection:
        tenant_id = create_tenant(
            connection, name, stored_bytes_max=stored_bytes_max, zero_retention=zero_retention
        )
    typer.echo(public_id(TENANT, tenant_id))


@app.command()
def update(
    name: Annotated[str, typer.Argument(help="The tenant's name.")],
    zero_retention: Annotated[
        bool | None,
        typer.Option(
            "--zero-retention/--no-zero-retention",
            help="Whether to retain nothing but the ledger of what is created from now on.",
        ),
    ] = None,
    call_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="SECONDS", help="Longest time of its online calls, 1 to 86400, or `off`."
        ),
    ] = None,
    data: DataOption = None,
) -> None:
    """Change a tenant. API processes apply it within seconds."""
    if zero_retention is None and call_timeout is None:
        raise typer.BadParameter("give --zero-retention or --call-timeout")
    timeout_s = None if call_timeout is None else _seconds_or_off(call_timeout)
    with transaction(data) as connection:
        tenant_id = find_tenant(connection, name)
        if zero_retention is not None:
            set_zero_retention(connection, tenant_id, on=zero_retention)
        if call_timeout is not None:
            timeout_ms = None if timeout_s is None else timeout_s * 1000
            set_call_timeout(connection, tenant_id, timeout_ms)
    if zero_retention is not None:
        typer.echo(f"{name} zero retention {'on' if zero_retention else 'off'}")
    if call_timeout is not None:
        typer.echo(f"{name} call timeout {_seconds_text(timeout_s)}")


@app.command()
def cache(
    name: Annotated[str, typer.Argument(help="The tenant's name.")],
    seconds: Annotated[
        str, typer.Argument(help="Time to live of cached responses, 1 to 86400, or `off`.")
    ],
    data: DataOption = None,
) -> None:
    """Answer identical requests of a tenant from a response cache, or turn the cache off.

    API processes apply it within seconds.
    """
    ttl_s = _seconds_or_off(seconds)
    with transaction(data) as connection:
        set_response_cache(connection, find_tenant(connection, name), ttl_s)
    typer.echo(f"{name} {_seconds_text(ttl_s)}")


@app.command("list")
def list_tenants(data: DataOption = None, output_format: FormatOption = OutputFormat.TABLE) -> None:
    """List all tenants by name."""
    columns = (
        tenants.c.id,
        tenants.c.name,
        tenants.c.stored_bytes_max,
        tenants.c.response_cache_ttl_s,
        tenants.c.zero_retention,
        tenants.c.call_timeout_ms,
        tenants.c.created_at,
    )
    with transaction(data) as connection:
        found = connection.execute(sa.select(*columns).order_by(tenants.c.name)).all()
    values = [_as_json(row) for row in found]
    write_output(output_format, values, _HEADERS, lambda: [_cells(row) for row in found])


def _as_json(row: Any) -> dict[str, object]:
    return {
        **row._asdict(),
        "id": public_id(TENANT, row.id),
        "created_at": int(row.created_at.timestamp()),
    }


def _cells(row: Any) -> tuple[str, ...]:
    return (
        row.name,
        public_id(TENANT, row.id),
        "default" if row.stored_bytes_max is None else f"{row.stored_bytes_max:,}",
        _seconds_text(row.response_cache_ttl_s),
        "yes" if row.zero_retention else "no",
        "default" if row.call_timeout_ms is None else f"{row.call_timeout_ms / 1000:g} s",
        row.created_at.isoformat(timespec="seconds"),
    )


def _seconds_text(seconds: int | None) -> str:
    return "off" if seconds is None else f"{seconds} s"


def _seconds_or_off(text: str) -> int | None:
    if text == "off":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not 1 <= int(text) <= TTL_S_MAX:
        raise typer.BadParameter(f"give 1 to {TTL_S_MAX} seconds, or `off`")
    return int(text)
