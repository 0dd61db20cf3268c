"""`millrace tenants`: who owns files, jobs and keys."""

from typing import Annotated

import sqlalchemy as sa
import typer

from cli.exits import CommandGroup
from cli.services import DataOption, transaction
from cli.tables import Form, FormOption, write_json, write_table
from core.ids import TENANT, public_id
from tenancy.tables import tenants
from tenancy.tenants import create_tenant

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Create and list tenants. For operators: talks to Postgres itself.",
)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="A name that no other tenant has.")],
    stored_bytes_max: Annotated[
        int | None, typer.Option(min=0, help="Bytes of files it may keep; else the default.")
    ] = None,
    data: DataOption = None,
) -> None:
    """Create a tenant and print its id. `millrace keys create --tenant NAME` comes next."""
    with transaction(data) as connection:
        tenant_id = create_tenant(connection, name, stored_bytes_max=stored_bytes_max)
    typer.echo(public_id(TENANT, tenant_id))


@app.command("list")
def list_tenants(data: DataOption = None, form: FormOption = Form.TABLE) -> None:
    """List all tenants by name."""
    columns = (tenants.c.id, tenants.c.name, tenants.c.stored_bytes_max, tenants.c.created_at)
    with transaction(data) as connection:
        found = connection.execute(sa.select(*columns).order_by(tenants.c.name)).all()
    if form is Form.JSON:
        write_json(
            [
                {
                    "id": public_id(TENANT, row.id),
                    "name": row.name,
                    "stored_bytes_max": row.stored_bytes_max,
                    "created_at": int(row.created_at.timestamp()),
                }
                for row in found
            ]
        )
        return
    write_table(
        ("name", "id", "bytes at most", "created"),
        [
            (
                row.name,
                public_id(TENANT, row.id),
                "default" if row.stored_bytes_max is None else f"{row.stored_bytes_max:,}",
                row.created_at.isoformat(timespec="seconds"),
            )
            for row in found
        ],
    )
