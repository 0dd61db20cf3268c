"""`millrace keys`: create, list and revoke the API keys of tenants."""

from typing import Annotated, Any

import sqlalchemy as sa
import typer

from cli.admin.operator_connections import DataOption, transaction
from cli.exits import NotFoundError
from cli.output import FormatOption, OutputFormat, write_output
from core.ids import KEY, parse_public_id, public_id
from tenancy import api_keys
from tenancy.tables import api_keys as key_rows
from tenancy.tables import tenants
from tenancy.tenants import find_tenant

app = typer.Typer(
    no_args_is_help=True,
    help="Create, list and revoke API keys. For operators: connects to Postgres.",
)

_HEADERS = ("id", "tenant", "name", "ends with", "created", "revoked")


@app.command()
def create(
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


@app.command("list")
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
    values = [_as_json(row) for row in found]
    write_output(output_format, values, _HEADERS, lambda: [_cells(row) for row in found])


@app.command()
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


def _as_json(row: Any) -> dict[str, object]:
    return {
        **row._asdict(),
        "id": public_id(KEY, row.id),
        "created_at": int(row.created_at.timestamp()),
        "revoked_at": row.revoked_at and int(row.revoked_at.timestamp()),
    }


def _cells(row: Any) -> tuple[str, ...]:
    return (
        public_id(KEY, row.id),
        row.tenant,
        row.name,
        f"…{row.hint}",
        row.created_at.isoformat(timespec="seconds"),
        row.revoked_at.isoformat(timespec="seconds") if row.revoked_at else "",
    )
