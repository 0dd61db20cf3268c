"""`millrace database`: the rights of each role in Postgres."""

from typing import Annotated

import sqlalchemy as sa
import typer

from cli.admin.operator_connections import DataOption, transaction
from core.errors import SettingsError
from migrations.role_rights import grant_statements

app = typer.Typer(
    short_help="Print the rights of each role in Postgres.",
    help="Print the rights of each role in Postgres. For operators; connects only with --apply.",
)


@app.callback()
def database() -> None:
    """Keep `grants` a command of a group: typer would merge a single one into it."""


@app.command()
def grants(
    prefix: Annotated[str, typer.Option(help="Put before the name of each user.")] = "millrace_",
    schema: Annotated[str, typer.Option(help="The schema of the tables.")] = "public",
    apply: Annotated[bool, typer.Option("--apply", help="Run the statements as well.")] = False,
    data: DataOption = None,
) -> None:
    """Print SQL that creates a user for each role and gives it exactly the rights it needs.

    Run it by `psql` as the owner of the tables, after `python -m migrations`, and again after
    each migration. The users have no password: give each one. A gpu-consumer has no user.
    """
    for name in (prefix, schema):
        if not name.isidentifier() or not name.isascii():
            raise SettingsError("--prefix and --schema take letters, digits and _ only")
    if apply:
        with transaction(data) as connection:
            for statement in grant_statements(prefix=prefix, schema=schema):
                connection.execute(sa.text(statement))
        return
    typer.echo("BEGIN;")
    for statement in grant_statements(prefix=prefix, schema=schema):
        typer.echo(f"{statement};")
    typer.echo("COMMIT;")
