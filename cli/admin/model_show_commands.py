"""`millrace models show` and `diff`: what a version is, and what differs between two."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.admin.operator_connections import DataOption, object_store, transaction
from cli.batch.job_display import time_text
from cli.output import FormatOption, OutputFormat, write_output
from core.errors import SettingsError
from registry.model_views import details_object, diff_object
from registry.store.published_objects import provenance_signers
from registry.store.version_details import diff_versions, read_details
from storage.objects.errors import ObjectStoreUnavailableError

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A name, an alias, or NAME@VERSION (12 digits).")
]


def show(
    model: ModelArgument,
    data: DataOption = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show a version: its manifest, who signed it, its pool, and the names that mean it."""
    with transaction(data) as connection:
        details = read_details(connection, model)
    found = details_object(details)
    if details.manifest is not None:
        found["provenance"] = _provenance_signers(details.model.version, data)
    write_output(output_format, found, ("field", "value"), lambda: version_rows(found))


def _provenance_signers(version: str, data: Path | None) -> list[str] | None:
    """Return who signed the files alone; None without an object store, which `show` can lack."""
    try:
        return provenance_signers(object_store(data), version)
    except (SettingsError, ObjectStoreUnavailableError) as failure:
        typer.echo(f"millrace: signatures of the files alone are not shown: {failure}", err=True)
        return None


def diff(
    old: ModelArgument,
    new: ModelArgument,
    data: DataOption = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show which files, options and other fields differ between two signed versions."""
    with transaction(data) as connection:
        found = diff_object(*diff_versions(connection, old, new))
    write_output(output_format, found, ("field", "old", "new"), lambda: diff_rows(found))


def version_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of a version; fields without a value are left out."""
    manifest = found["manifest"] or {}
    rows = [
        ("id", found["id"]),
        ("names", ", ".join(found["names"])),
        ("pool", found["pool"]),
        ("engine", found["engine"]),
        ("endpoints", ",".join(found["endpoints"])),
        ("verification", found["verification"]),
        ("base", found["base_version"] or ""),
        ("tenant", found["tenant_id"] or ""),
        ("registered", time_text(found["created_at"])),
        ("retired", time_text(found["retired_at"])),
        ("source", manifest.get("source") or ""),
        ("files", _files_text(manifest) if manifest else ""),
        ("has code", "yes" if manifest.get("allows_code") else ""),
        *((f"option {name}", _json(value)) for name, value in _options(manifest)),
        *((f"sampling {name}", _json(value)) for name, value in _sampling(manifest)),
        *(("signed by", _signature_text(one)) for one in found["signatures"]),
        *(("files signed by", key_id) for key_id in found.get("provenance") or ()),
    ]
    return [(field, value) for field, value in rows if value]


def diff_rows(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the lines of a difference; `-` stands for what is absent."""
    return [
        (one["field"], _value_text(one["old"]), _value_text(one["new"])) for one in found["changes"]
    ]


def _files_text(manifest: dict[str, Any]) -> str:
    return f"{manifest['file_count']}, {manifest['total_bytes']} bytes"


def _options(manifest: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted(manifest.get("engine_options", {}).items())


def _sampling(manifest: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted(manifest.get("sampling", {}).items())


def _signature_text(signature: dict[str, Any]) -> str:
    revoked = " (revoked)" if signature["key_revoked_at"] is not None else ""
    return f"{signature['key_name']} {signature['key']}{revoked}"


def _value_text(value: object) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else _json(value)


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)
