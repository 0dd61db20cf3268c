"""`millrace keys`: give a tenant an API key, see which there are, take one back."""

from typing import Annotated

import sqlalchemy as sa
import typer

from cli.admin.operator_connections import DataOption, transaction
from cli.exits import NotFoundError
from cli.output_tables import FormatOption, OutputFormat, write_json, write_table
from core.ids import KEY, parse_public_id, public_id
from tenancy import api_keys
from tenancy.tables import api_keys as key_rows
from tenancy.tables import tenants
from tenancy.tenants import find_tenant

app = typer.Typer(
    no_args_is_help=True,
    help="Create, list and revoke API keys. For operators: talks to Postgres itself.",
)


@app.command()
def create(
    tenant: Annotated[str, typer.Option(help="Name of the tenant that the key acts for.")],
    name: Annotated[str, typer.Option(help="What the key is for; shown beside it.")] = "",
    data: DataOption = None,
) -> None:
    """Create a key and print it on stdout. It is stored as a hash and cannot be shown again.

    Its id, which `revoke` takes, goes to stderr.
    """
    with transaction(data) as connection:
        key = api_keys.create_key(connection, find_tenant(connection, tenant), name)
    typer.echo(f"{public_id(KEY, key.key_id)} of tenant {tenant}; shown this once:", err=True)
    typer.echo(key.secret)


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only the keys of this tenant.")] = None,
    revoked: Annotated[
        bool, typer.Option("--revoked", help="Also those that are revoked.")
    ] = False,
    data: DataOption = None,
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """List keys, oldest first: whose they are and how they end, never the keys themselves."""
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
    if form is OutputFormat.JSON:
        write_json(
            [
                {
                    "id": public_id(KEY, row.id),
                    "tenant": row.tenant,
                    "name": row.name,
                    "hint": row.hint,
                    "created_at": int(row.created_at.timestamp()),
                    "revoked_at": row.revoked_at and int(row.revoked_at.timestamp()),
                }
                for row in found
            ]
        )
        return
    write_table(
        ("id", "tenant", "name", "ends with", "created", "revoked"),
        [
            (
                public_id(KEY, row.id),
                row.tenant,
                row.name,
                f"…{row.hint}",
                row.created_at.isoformat(timespec="seconds"),
                row.revoked_at.isoformat(timespec="seconds") if row.revoked_at else "",
            )
            for row in found
        ],
    )


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="The key's id, `key_…`.")],
    data: DataOption = None,
) -> None:
    """Revoke a key for ever. Jobs that it created go on."""
    parsed = parse_public_id(KEY, key_id)
    with transaction(data) as connection:
        revoked = parsed is not None and api_keys.revoke_key(connection, parsed)
    if not revoked:
        raise NotFoundError("No working key has this id.")
    typer.echo(f"{key_id} is revoked.", err=True)
