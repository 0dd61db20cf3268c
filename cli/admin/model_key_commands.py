"""`millrace models keys`: whose signatures of models are accepted; and states sent again."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.admin.operator_connections import DataOption, transaction
from cli.batch.job_display import time_text
from cli.output import FormatOption, OutputFormat, write_output
from jobs.store.model_acts import add_model_key, republish_models, revoke_model_key
from registry.model_views import key_object
from registry.store.keys import PEM_BYTES_MAX, list_keys
from tenancy.installation_log import CLI_OPERATOR

app = typer.Typer(help="Add, list and revoke the keys whose signatures of models are accepted.")

_HEADERS = ("key", "name", "added", "revoked")


@app.command()
def add(
    file: Annotated[Path, typer.Argument(help="A public key in PEM, on the curve P-256.")],
    name: Annotated[str | None, typer.Option(help="Default: the name of the file.")] = None,
    data: DataOption = None,
) -> None:
    """Accept signatures by a key when versions are registered.

    A replica loads only what a key in its own file (MILLRACE_ENGINE_TRUSTED_KEYS) has signed.
    """
    with file.open("rb") as opened:
        pem = opened.read(PEM_BYTES_MAX)
    with transaction(data) as connection:
        key = add_model_key(connection, CLI_OPERATOR, pem, name or file.name)
    typer.echo(key.key_id)


@app.command("list")
def list_all(data: DataOption = None, output_format: FormatOption = OutputFormat.TABLE) -> None:
    """List the keys, revoked ones too."""
    with transaction(data) as connection:
        found = [key_object(row) for row in list_keys(connection)]
    write_output(output_format, found, _HEADERS, lambda: key_rows(found))


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY", help="The key's id, as listed.")],
    data: DataOption = None,
) -> None:
    """Revoke a key, for good: its signatures do not count any more.

    Replicas do not load versions that it alone has signed; those that are loaded stay loaded.
    """
    with transaction(data) as connection:
        revoke_model_key(connection, CLI_OPERATOR, key_id)
    typer.echo(f"{key_id} is revoked.", err=True)


def republish(data: DataOption = None) -> None:
    """Send the states of all signed versions and keys again, for a new topic `models`."""
    with transaction(data) as connection:
        count = republish_models(connection, CLI_OPERATOR)
    typer.echo(f"{count} states are sent again.", err=True)


def key_rows(found: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the lines of keys."""
    return [
        (one["id"], one["name"], time_text(one["created_at"]), time_text(one["revoked_at"]))
        for one in found
    ]
