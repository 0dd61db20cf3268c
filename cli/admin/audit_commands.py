"""`millrace audit`: what was done by whom, and the proof that nobody changed it since."""

import json
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from uuid import UUID

import msgspec
import sqlalchemy as sa
import typer

from cli.admin.operator_connections import DataOption, transaction
from cli.exits import CommandError, ExitCode, NotFoundError
from cli.output_tables import FormatOption, OutputFormat, write_json, write_table
from core.ids import TENANT, parse_public_id, public_id
from tenancy.audit_log import ENTRY
from tenancy.audit_reading import (
    Checked,
    chains,
    check_chain,
    entry_fields,
    list_acts,
    read_heads,
)
from tenancy.tenants import find_tenant

app = typer.Typer(
    no_args_is_help=True,
    help="Read and verify the audit log. For operators: talks to Postgres itself.",
)

TenantOption: TypeAlias = Annotated[
    str | None, typer.Option("--tenant", help="Only the rows of the tenant of this name.")
]
Anchors: TypeAlias = dict[UUID, dict[int, set[bytes]]]


class AnchorError(CommandError):
    """The file of anchors is not what `millrace audit head -o json` wrote."""

    exit_code = ExitCode.USAGE


class _Anchor(msgspec.Struct, frozen=True):
    tenant: str
    sequence: int
    hash: str


@app.command("list")
def list_entries(
    tenant: Annotated[str, typer.Option("--tenant", help="Whose rows.")],
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Rows to list.")] = 20,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on behind this row, `id` in JSON.")
    ] = None,
    data: DataOption = None,
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """List what was done in a tenant's name, newest first."""
    with transaction(data) as connection:
        tenant_id = find_tenant(connection, tenant)
        found = list_acts(connection, tenant_id, after=_row_id(after), limit=limit)
    if found is None:
        raise NotFoundError(f"{tenant} has no row {after}.")
    rows, has_more = found
    if form is OutputFormat.JSON:
        write_json([as_json(row) for row in rows])
    else:
        write_table(
            ("row", "when", "actor", "action", "subject", "details"),
            [
                (
                    str(row.sequence),
                    row.created_at.isoformat(timespec="seconds"),
                    row.actor,
                    row.action,
                    row.subject,
                    json.dumps(row.details, sort_keys=True) if row.details else "",
                )
                for row in rows
            ],
        )
    if has_more:
        typer.echo(f"more: --after {public_id(ENTRY, rows[-1].id)}", err=True)


@app.command()
def head(
    tenant: TenantOption = None, data: DataOption = None, form: FormatOption = OutputFormat.TABLE
) -> None:
    """Print the end of each chain. Keep it where nobody who can write this database can write."""
    with transaction(data) as connection:
        heads = read_heads(connection, _tenant_id(connection, tenant))
    if form is OutputFormat.JSON:
        shown = [
            {
                "tenant": public_id(TENANT, one.tenant_id),
                "sequence": one.sequence,
                "hash": one.hash.hex(),
            }
            for one in heads
        ]
        write_json(shown)
        return
    rows = [(public_id(TENANT, one.tenant_id), str(one.sequence), one.hash.hex()) for one in heads]
    write_table(("tenant", "rows", "hash"), rows)


@app.command()
def verify(
    tenant: TenantOption = None,
    anchor: Annotated[
        list[Path] | None,
        typer.Option(
            "--anchor",
            metavar="FILE",
            help="What `millrace audit head -o json` wrote earlier; may be given several times.",
        ),
    ] = None,
    data: DataOption = None,
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """Compute every chain again and name the first row of each that does not fit.

    Exit code 1 says that one does not.
    """
    anchors = _anchors(anchor or [])
    with transaction(data) as connection:
        connection.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        one = _tenant_id(connection, tenant)
        found = [
            check_chain(connection, tenant_id, anchors.get(tenant_id, {}))
            for tenant_id in ({*chains(connection), *anchors} if one is None else [one])
        ]
    found.sort(key=lambda checked: checked.head.tenant_id.hex)
    if form is OutputFormat.JSON:
        write_json([_verdict(checked) for checked in found])
    else:
        write_table(("tenant", "rows that fit", "verdict"), [_cells(checked) for checked in found])
    if any(checked.misfit for checked in found):
        raise typer.Exit(ExitCode.FAILED)


def as_json(row: Any) -> dict[str, object]:
    """Return a row for programs; with it anybody can compute its hash again."""
    return {**entry_fields(row), "created_at": row.created_at.isoformat(timespec="microseconds")}


def _verdict(checked: Checked) -> dict[str, object]:
    misfit = checked.misfit
    return {
        "tenant": public_id(TENANT, checked.head.tenant_id),
        "rows_that_fit": checked.head.sequence,
        "hash": checked.head.hash.hex(),
        "first_misfit": None
        if misfit is None
        else {"sequence": misfit.sequence, "reason": misfit.reason},
    }


def _cells(checked: Checked) -> tuple[str, str, str]:
    misfit = checked.misfit
    verdict = "whole" if misfit is None else f"row {misfit.sequence}: {misfit.reason}"
    return public_id(TENANT, checked.head.tenant_id), str(checked.head.sequence), verdict


def _row_id(text: str | None) -> UUID | None:
    """Return the id that a row is known by. Raises NotFoundError."""
    if text is None:
        return None
    row_id = parse_public_id(ENTRY, text)
    if row_id is None:
        raise NotFoundError(f"{text} is no id of a row.")
    return row_id


def _tenant_id(connection: sa.Connection, name: str | None) -> UUID | None:
    return None if name is None else find_tenant(connection, name)


def _anchors(paths: list[Path]) -> Anchors:
    """Return hashes by tenant and sequence, all that any file says. Raises AnchorError, OSError."""
    anchors: Anchors = {}
    for path in paths:
        try:
            for one in msgspec.json.decode(path.read_bytes(), type=list[_Anchor]):
                tenant_id = parse_public_id(TENANT, one.tenant)
                if tenant_id is None:
                    raise AnchorError
                if one.sequence > 0:
                    known = anchors.setdefault(tenant_id, {}).setdefault(one.sequence, set())
                    known.add(bytes.fromhex(one.hash))
        except (msgspec.MsgspecError, ValueError):
            raise AnchorError from None
    return anchors
