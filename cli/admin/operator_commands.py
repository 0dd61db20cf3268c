"""`millrace operators`: keys of the installation, for `/v1/admin` and commands without database."""

from typing import Annotated, Any

import typer

from cli.admin.operator_connections import DataOption, transaction
from cli.exits import NotFoundError
from cli.output import FormatOption, OutputFormat, write_output
from core.ids import OPERATOR_KEY, parse_public_id, public_id
from tenancy.operator_keys import (
    OperatorRole,
    create_operator_key,
    list_operator_keys,
    revoke_operator_key,
)

app = typer.Typer(
    help="Create, list and revoke operator keys. For operators: connects to Postgres."
)

_HEADERS = ("id", "name", "role", "ends with", "created", "revoked")


@app.command()
def create(
    role: Annotated[
        OperatorRole, typer.Option(help="read: show tenants and lists; admin: also change them.")
    ],
    name: Annotated[str, typer.Option(help="Purpose of the key; shown in lists.")] = "",
    data: DataOption = None,
) -> None:
    """Create an operator key and print it on stdout. It is shown only once.

    It is the MILLRACE_OPERATOR_KEY of commands without a database. Its id, which `revoke` needs,
    goes to stderr.
    """
    with transaction(data) as connection:
        key = create_operator_key(connection, name, role)
    key_id = public_id(OPERATOR_KEY, key.key_id)
    typer.echo(f"{key_id} with the role {role}; shown this once:", err=True)
    typer.echo(key.secret)


@app.command("list")
def list_keys(
    revoked: Annotated[bool, typer.Option("--revoked", help="Include revoked keys.")] = False,
    data: DataOption = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """List operator keys, oldest first, with their roles and last characters; never the keys."""
    with transaction(data) as connection:
        found = list_operator_keys(connection, with_revoked=revoked)
    values = [_as_json(row) for row in found]
    write_output(output_format, values, _HEADERS, lambda: [_cells(row) for row in found])


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="The key's id, `opkey_…`.")],
    data: DataOption = None,
) -> None:
    """Revoke an operator key permanently. API processes stop it within seconds."""
    parsed = parse_public_id(OPERATOR_KEY, key_id)
    with transaction(data) as connection:
        revoked = parsed is not None and revoke_operator_key(connection, parsed)
    if not revoked:
        raise NotFoundError("No active operator key has this id.")
    typer.echo(f"{key_id} is revoked.", err=True)


def _as_json(row: Any) -> dict[str, object]:
    return {
        **row._asdict(),
        "id": public_id(OPERATOR_KEY, row.id),
        "created_at": int(row.created_at.timestamp()),
        "revoked_at": row.revoked_at and int(row.revoked_at.timestamp()),
    }


def _cells(row: Any) -> tuple[str, ...]:
    return (
        public_id(OPERATOR_KEY, row.id),
        row.name,
        row.role,
        f"…{row.hint}",
        row.created_at.isoformat(timespec="seconds"),
        row.revoked_at.isoformat(timespec="seconds") if row.revoked_at else "",
    )
