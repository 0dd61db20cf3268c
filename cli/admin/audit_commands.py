"""`millrace audit`: list the audit log and verify its hash chains."""

import json
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from uuid import UUID

import msgspec
import sqlalchemy as sa
import typer

from cli.admin.operator_connections import DataOption, transaction
from cli.exits import CommandError, ExitCode, NotFoundError
from cli.output import FormatOption, OutputFormat, print_next_page, write_output
from core.ids import TENANT, parse_public_id, public_id
from tenancy.audit_log import ENTRY
from tenancy.audit_reading import (
    ChainCheck,
    entry_fields,
    find_chains,
    read_chain_heads,
    read_entries,
    verify_chain,
)
from tenancy.installation_log import INSTALLATION
from tenancy.tenants import find_tenant

app = typer.Typer(help="Read and verify the audit log. For operators: connects to Postgres.")

TenantOption: TypeAlias = Annotated[
    str | None, typer.Option("--tenant", help="Only the rows of the tenant of this name.")
]
Anchors: TypeAlias = dict[UUID, dict[int, set[bytes]]]

_INSTALLATION_NAME = "installation"
"""Shown for the tenant of the installation's chain."""

_ENTRY_HEADERS = ("row", "when", "actor", "action", "subject", "details")
_CHAIN_HEADERS = ("tenant", "rows that fit", "verdict")


class AnchorError(CommandError):
    """The anchor file was not written by `millrace audit head -o json`."""

    exit_code = ExitCode.USAGE


class _Anchor(msgspec.Struct, frozen=True):
    tenant: str
    sequence: int
    hash: str


@app.command("list")
def list_entries(
    tenant: Annotated[
        str | None,
        typer.Option("--tenant", help="Name of the tenant; without it, the installation."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Rows to list.")] = 20,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Continue after this row, `id` in JSON.")
    ] = None,
    data: DataOption = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """List the recorded operations of operators, or those of a tenant, newest first."""
    with transaction(data) as connection:
        tenant_id = _tenant_id(connection, tenant) or INSTALLATION
        found = read_entries(connection, tenant_id, after=_row_id(after), limit=limit)
    if found is None:
        raise NotFoundError(f"{tenant or _INSTALLATION_NAME} has no row {after}.")
    rows, has_more = found
    values = [as_json(row) for row in rows]
    write_output(output_format, values, _ENTRY_HEADERS, lambda: [_entry_cells(r) for r in rows])
    if has_more:
        print_next_page(public_id(ENTRY, rows[-1].id))


@app.command()
def head(
    tenant: TenantOption = None,
    data: DataOption = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Print the last hash of each chain. Store it where no writer of this database can write."""
    with transaction(data) as connection:
        heads = read_chain_heads(connection, _tenant_id(connection, tenant))
    rows = [(_chain_name(one.tenant_id), one.sequence, one.hash.hex()) for one in heads]
    values = [dict(zip(("tenant", "sequence", "hash"), row, strict=True)) for row in rows]
    write_output(
        output_format, values, ("tenant", "rows", "hash"), lambda: [[*map(str, r)] for r in rows]
    )


@app.command()
def verify(
    tenant: TenantOption = None,
    anchor: Annotated[
        list[Path] | None,
        typer.Option(
            "--anchor",
            metavar="FILE",
            help="Output of an earlier `millrace audit head -o json`; may be repeated.",
        ),
    ] = None,
    data: DataOption = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Verify every hash chain and print the first row of each that does not fit.

    Exit code 1: a row does not fit.
    """
    anchors = _anchors(anchor or [])
    with transaction(data) as connection:
        connection.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        only = _tenant_id(connection, tenant)
        found = [
            verify_chain(connection, tenant_id, anchors.get(tenant_id, {}))
            for tenant_id in ({*find_chains(connection), *anchors} if only is None else [only])
        ]
    found.sort(key=lambda checked: checked.head.tenant_id.hex)
    values = [_chain_json(checked) for checked in found]
    write_output(output_format, values, _CHAIN_HEADERS, lambda: [_chain_cells(c) for c in found])
    if any(checked.mismatch for checked in found):
        raise typer.Exit(ExitCode.FAILED)


def as_json(row: Any) -> dict[str, object]:
    """Return a row as JSON, with every field that its hash covers."""
    return {**entry_fields(row), "created_at": row.created_at.isoformat(timespec="microseconds")}


def _entry_cells(row: Any) -> tuple[str, ...]:
    return (
        str(row.sequence),
        row.created_at.isoformat(timespec="seconds"),
        row.actor,
        row.action,
        row.subject,
        json.dumps(row.details, sort_keys=True) if row.details else "",
    )


def _chain_json(checked: ChainCheck) -> dict[str, object]:
    misfit = checked.mismatch
    return {
        "tenant": _chain_name(checked.head.tenant_id),
        "rows_that_fit": checked.head.sequence,
        "hash": checked.head.hash.hex(),
        "first_misfit": None
        if misfit is None
        else {"sequence": misfit.sequence, "reason": misfit.reason},
    }


def _chain_cells(checked: ChainCheck) -> tuple[str, str, str]:
    misfit = checked.mismatch
    verdict = "whole" if misfit is None else f"row {misfit.sequence}: {misfit.reason}"
    return _chain_name(checked.head.tenant_id), str(checked.head.sequence), verdict


def _chain_name(tenant_id: UUID) -> str:
    """Return the tenant of a chain as it is shown."""
    return _INSTALLATION_NAME if tenant_id == INSTALLATION else public_id(TENANT, tenant_id)


def _row_id(text: str | None) -> UUID | None:
    """Parse the public id of a row. Raises NotFoundError."""
    if text is None:
        return None
    row_id = parse_public_id(ENTRY, text)
    if row_id is None:
        raise NotFoundError(f"{text} is not the id of a row.")
    return row_id


def _tenant_id(connection: sa.Connection, name: str | None) -> UUID | None:
    return None if name is None else find_tenant(connection, name)


def _anchors(paths: list[Path]) -> Anchors:
    """Return the hashes in all files by tenant and sequence. Raises AnchorError, OSError."""
    anchors: Anchors = {}
    for path in paths:
        try:
            for one in msgspec.json.decode(path.read_bytes(), type=list[_Anchor]):
                is_installation = one.tenant == _INSTALLATION_NAME
                tenant_id = INSTALLATION if is_installation else parse_public_id(TENANT, one.tenant)
                if tenant_id is None:
                    raise AnchorError
                if one.sequence > 0:
                    known = anchors.setdefault(tenant_id, {}).setdefault(one.sequence, set())
                    known.add(bytes.fromhex(one.hash))
        except (msgspec.MsgspecError, ValueError):
            raise AnchorError from None
    return anchors
