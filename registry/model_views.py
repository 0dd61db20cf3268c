"""Objects of the registry as operators see them: in the API, and as JSON of the command line."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from core.ids import TENANT, public_id
from registry.manifests.manifest import Manifest
from registry.models import ModelVersion
from registry.store.model_resolution import Meaning
from registry.store.version_details import VersionDetails, VersionSignature

FILES_SHOWN_MAX: Final = 1000
CHANGES_SHOWN_MAX: Final = 1000


def model_object(model: ModelVersion) -> dict[str, object]:
    """Return a name that serves new jobs, with its version."""
    return {"id": model.name, "object": "model", **_fields(model)}


def version_object(model: ModelVersion) -> dict[str, object]:
    """Return a version, whose id is `name@version`."""
    return {"id": model.id, "object": "model_version", "name": model.name, **_fields(model)}


def details_object(details: VersionDetails) -> dict[str, object]:
    """Return a version with its manifest, its signatures and the names that mean it."""
    manifest = details.manifest
    return {
        **version_object(details.model),
        "names": list(details.names),
        "manifest": None if manifest is None else _manifest_object(manifest),
        "signatures": [_signature_object(one) for one in details.signatures],
    }


def diff_object(
    old: ModelVersion, new: ModelVersion, changes: Mapping[str, tuple[Any, Any]]
) -> dict[str, object]:
    """Return what differs between two versions, by field or `files/PATH`."""
    shown = list(changes.items())[:CHANGES_SHOWN_MAX]
    return {
        "object": "model_diff",
        "old": old.id,
        "new": new.id,
        "change_count": len(changes),
        "changes": [
            {"field": field, "old": before, "new": after} for field, (before, after) in shown
        ],
    }


def alias_object(
    alias: str,
    meaning: Meaning,
    model: ModelVersion | None,
    history: list[tuple[datetime, Meaning]],
) -> dict[str, object]:
    """Return an alias with what it means now, and since when it meant what, newest first."""
    return {
        "id": alias,
        "object": "model_alias",
        "target": meaning.alias_of,
        "model_version": None if model is None else model.id,
        "tenant_id": _tenant(meaning.tenant_id),
        "revision": meaning.revision,
        "history": [
            {"set_at": _seconds(set_at), "revision": one.revision, "target": one.alias_of}
            for set_at, one in history
        ],
    }


def key_object(row: Any) -> dict[str, object]:
    """Return a model key, which is public."""
    return {
        "id": row.key_id,
        "object": "model_key",
        "created_at": _seconds(row.added_at),
        "revoked_at": _seconds(row.revoked_at),
        "name": row.name,
        "pem": row.pem,
    }


def _fields(model: ModelVersion) -> dict[str, object]:
    return {
        "created_at": _seconds(model.created_at),
        "version": model.version,
        "pool": model.pool,
        "engine": model.engine,
        "endpoints": list(model.endpoints),
        "verification": model.verification,
        "base_version": model.base_version,
        "tenant_id": _tenant(model.tenant_id),
        "retired_at": _seconds(model.retired_at),
    }


def _manifest_object(manifest: Manifest) -> dict[str, object]:
    fields: dict[str, object] = msgspec.to_builtins(manifest)
    return {
        **fields,
        "schema": manifest.schema,
        "source": manifest.source,
        "files": [msgspec.to_builtins(file) for file in manifest.files[:FILES_SHOWN_MAX]],
        "file_count": len(manifest.files),
        "total_bytes": manifest.total_bytes,
    }


def _signature_object(signature: VersionSignature) -> dict[str, object]:
    return {
        "key": signature.key_id,
        "key_name": signature.key_name,
        "created_at": _seconds(signature.signed_at),
        "key_revoked_at": _seconds(signature.revoked_at),
    }


def _seconds(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())


def _tenant(tenant_id: Any) -> str | None:
    return None if tenant_id is None else public_id(TENANT, tenant_id)
