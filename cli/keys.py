"""`millrace keys`: give a tenant an API key, or take one back."""

from typing import Annotated

import typer

from cli.exits import CommandGroup, NotFoundError
from cli.services import DataOption, transaction
from core.ids import KEY, parse_public_id, public_id
from tenancy import api_keys
from tenancy.tenants import find_tenant

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Create and revoke API keys. For operators: talks to Postgres itself.",
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
