"""`millrace models alias` and `retire`: what names mean, and which versions are used no more."""

from typing import Annotated, Any, Final

import sqlalchemy as sa
import typer

from cli.admin.model_show_commands import ModelArgument
from cli.admin.operator_connections import DataOption, transaction
from cli.batch.job_display import time_text
from cli.exits import NotFoundError
from cli.output import FormatOption, OutputFormat, write_output
from jobs.store.model_acts import remove_model_name, retire_model, set_model_alias
from registry.model_views import alias_object
from registry.models import ANY_TENANT
from registry.store.acts import AllowsRevision
from registry.store.model_resolution import resolve_text
from registry.store.name_rows import LoadedNames, name_history
from tenancy.installation_log import CLI_OPERATOR
from tenancy.tenants import find_tenant

_HISTORY_MAX: Final = 1000


def alias(  # noqa: PLR0913, PLR0917  one parameter an option
    name: Annotated[str | None, typer.Argument(help="The alias; without, list all.")] = None,
    target: Annotated[
        str | None,
        typer.Argument(help="A name, which it follows, or NAME@VERSION; without, show history."),
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Let the name mean nothing; a model's own name, too.")
    ] = False,
    tenant: Annotated[
        str | None, typer.Option(help="Name of the tenant that alone has this alias.")
    ] = None,
    if_revision: Annotated[
        int | None,
        typer.Option(min=0, help="Only if the name has this revision; 0: if it does not exist."),
    ] = None,
    data: DataOption = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Set, remove, show or list aliases: other names of models and versions.

    New jobs and calls use what an alias means from then on; running jobs keep their version.
    """
    if remove and (name is None or target is not None):
        raise typer.BadParameter("--remove takes a NAME and no TARGET")
    allows: AllowsRevision | None = None
    if if_revision is not None:
        allows = if_revision.__eq__
    with transaction(data) as connection:
        if name is not None and remove:
            remove_model_name(connection, CLI_OPERATOR, name, allows=allows)
            typer.echo(f"{name} is removed.", err=True)
            return
        if name is not None and target is not None:
            tenant_id = None if tenant is None else find_tenant(connection, tenant)
            meaning = set_model_alias(
                connection, CLI_OPERATOR, name, target, tenant_id=tenant_id, allows=allows
            )
            typer.echo(f"{name} {meaning.alias_of}")
            return
        if name is None:
            found = read_aliases(connection)
            write_output(output_format, found, ALIAS_HEADERS, lambda: alias_rows(found))
            return
        history = read_history(connection, name)
    write_output(output_format, history, HISTORY_HEADERS, lambda: history_rows(history))


def retire(
    model: ModelArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Also while unfinished jobs use it: they will wait.")
    ] = False,
    data: DataOption = None,
) -> None:
    """Retire a version, for good: no replica loads it again, and no new job gets it.

    Replicas that have it loaded keep serving it until they restart. Refused while a name, an alias
    or an adapter uses it.
    """
    with transaction(data) as connection:
        retired = retire_model(connection, CLI_OPERATOR, model, force=force)
    typer.echo(f"{retired.id} is retired.", err=True)


ALIAS_HEADERS: Final = ("alias", "target", "version", "tenant", "revision")
HISTORY_HEADERS: Final = ("since", "revision", "meaning")


def read_aliases(connection: sa.Connection) -> list[dict[str, Any]]:
    """Return all aliases by name."""
    names = LoadedNames(connection)
    return [
        alias_object(name, names.meanings[name], resolve_text(name, names, ANY_TENANT), [])
        for name in sorted(names.aliases)
    ]


def read_history(connection: sa.Connection, name: str) -> list[dict[str, Any]]:
    """Return since when a name meant what, newest first. Raises NotFoundError."""
    found = [
        {
            "since": int(set_at.timestamp()),
            "revision": meaning.revision,
            "meaning": meaning.alias_of if meaning.version is None else meaning.version.id,
        }
        for set_at, meaning in name_history(connection, name, limit=_HISTORY_MAX)
    ]
    if not found:
        raise NotFoundError("No model or alias has this name.")
    return found


def alias_rows(found: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the lines of aliases."""
    return [
        (
            one["id"],
            one["target"],
            one["model_version"] or "-",
            one["tenant_id"] or "",
            str(one["revision"]),
        )
        for one in found
    ]


def history_rows(found: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the lines of a history; `-` where the name was removed."""
    return [(time_text(one["since"]), str(one["revision"]), one["meaning"] or "-") for one in found]
