"""`millrace models collect`: remove objects of models that no registered version needs."""

from typing import Annotated, Any

import typer

from cli.admin.operator_connections import DataOption, object_store, transaction
from cli.output import FormatOption, OutputFormat, write_output
from registry.store.object_collection import (
    AGE_S_MIN,
    REMOVED_AT_ONCE,
    read_needed,
    remove_unneeded,
    unneeded_objects,
)
from storage.objects.object_store import ObjectInfo
from storage.postgres.database_times import database_now_s
from tenancy.audit_log import Action
from tenancy.installation_log import CLI_OPERATOR, record_operator_event


def collect(
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove them; without it they are only listed.")
    ] = False,
    retired: Annotated[
        bool, typer.Option("--retired", help="Also what only retired versions need.")
    ] = False,
    data: DataOption = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """List or remove stored objects that no registered version needs, of failed pushes mostly.

    Objects that are younger than a day stay: a push may be about to register them.
    """
    objects = object_store(data)
    with transaction(data) as connection:
        newest_s = database_now_s(connection.engine) - AGE_S_MIN
        needed = read_needed(connection, with_retired=retired)
    found = sorted(unneeded_objects(objects, needed, newest_s), key=lambda info: info.key)
    if delete:
        removed: list[ObjectInfo] = []
        for start in range(0, len(found), REMOVED_AT_ONCE):
            some = found[start : start + REMOVED_AT_ONCE]
            with transaction(data) as connection:
                gone = remove_unneeded(connection, objects, some, needed, with_retired=retired)
                details: dict[str, Any] = {
                    "objects": len(gone),
                    "bytes": _bytes(gone),
                    "retired": retired,
                }
                record_operator_event(
                    connection, CLI_OPERATOR, Action.MODEL_OBJECTS_REMOVED, "models", details
                )
            removed += gone
        found = removed
    shown = [{"key": info.key, "bytes": info.size_bytes} for info in found]
    rows = [(info.key, str(info.size_bytes)) for info in found]
    write_output(output_format, shown, ("key", "bytes"), lambda: rows)
    what = "removed" if delete else "not needed: remove them by --delete"
    typer.echo(f"millrace: {len(found)} objects of {_bytes(found)} bytes {what}", err=True)


def _bytes(found: list[ObjectInfo]) -> int:
    return sum(info.size_bytes for info in found)
