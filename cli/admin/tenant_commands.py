"""`millrace tenants` and `millrace keys`: tenants, their response cache and their API keys."""

from typing import Annotated, Any

import sqlalchemy as sa
import typer

from cli.admin.operator_connections import DataOption, transaction
from cli.exits import NotFoundError
from cli.output import FormatOption, OutputFormat, write_output
from core.ids import KEY, TENANT, parse_public_id, public_id
from tenancy import api_keys
from tenancy.response_cache import TTL_S_MAX, set_response_cache
from tenancy.tables import api_keys as key_rows
from tenancy.tables import tenants
from tenancy.tenants import create_tenant, find_tenant, set_call_timeout, set_zero_retention

keys = typer.Typer(help="Create, list and revoke API keys. For operators: connects to Postgres.")
app = typer.Typer(help="Create, list and set up tenants. For operators: connects to Postgres.")

_KEY_HEADERS = ("id", "tenant", "name", "ends with", "created", "revoked")
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


@keys.command("create")
def create_tenant_key(
    tenant: Annotated[str, typer.Option(help="Name of the tenant that the key authenticates.")],
    name: Annotated[str, typer.Option(help="Purpose of the key; shown in lists.")] = "",
    data: DataOption = None,
) -> None:
    """Create a key and print it on stdout. Only its hash is stored, so it is shown only once.

    Its id, which `revoke` needs, goes to stderr.
    """
    with transaction(data) as connection:
        key = api_keys.create_key(connection, find_tenant(connection, tenant), name)
    typer.echo(f"{public_id(KEY, key.key_id)} of tenant {tenant}; shown this once:", err=True)
    typer.echo(key.secret)


@keys.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only the keys of this tenant.")] = None,
    revoked: Annotated[bool, typer.Option("--revoked", help="Include revoked keys.")] = False,
    data: DataOption = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """List keys, oldest first, with their tenants and last characters; never the keys."""
    query = (
        sa.select(
            key_rows.c.id,
            tenants.c.name.label("tenant"),
            key_rows.c.name,
            key_rows.c.hint,
            key_rows.c.created_at,
            key_rows.c.revoked_at,
        )
        .join(tenants, tenants.c.id == key_rows.c.tenant_id)
        .order_by(key_rows.c.created_at, key_rows.c.id)
    )
    with transaction(data) as connection:
        if tenant is not None:
            query = query.where(key_rows.c.tenant_id == find_tenant(connection, tenant))
        if not revoked:
            query = query.where(key_rows.c.revoked_at.is_(None))
        found = connection.execute(query).all()
    values = [_key_json(row) for row in found]
    write_output(output_format, values, _KEY_HEADERS, lambda: [_key_cells(row) for row in found])


@keys.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="The key's id, `key_…`.")],
    data: DataOption = None,
) -> None:
    """Revoke a key permanently. Jobs that it created continue."""
    parsed = parse_public_id(KEY, key_id)
    with transaction(data) as connection:
        revoked = parsed is not None and api_keys.revoke_key(connection, parsed)
    if not revoked:
        raise NotFoundError("No active key has this id.")
    typer.echo(f"{key_id} is revoked.", err=True)


def _key_json(row: Any) -> dict[str, object]:
    return {
        **row._asdict(),
        "id": public_id(KEY, row.id),
        "created_at": int(row.created_at.timestamp()),
        "revoked_at": row.revoked_at and int(row.revoked_at.timestamp()),
    }


def _key_cells(row: Any) -> tuple[str, ...]:
    return (
        public_id(KEY, row.id),
        row.tenant,
        row.name,
        f"…{row.hint}",
        row.created_at.isoformat(timespec="seconds"),
        row.revoked_at.isoformat(timespec="seconds") if row.revoked_at else "",
    )
