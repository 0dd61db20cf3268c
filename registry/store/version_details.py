"""What the registry knows of one version: manifest, signatures, names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from registry.errors import InvalidModelError, ModelNotFoundError
from registry.manifests.manifest import Manifest, changed_fields, decode_manifest
from registry.model_version import ANY_TENANT, ModelVersion
from registry.store.aliases import names_of
from registry.store.name_rows import LoadedNames, resolve
from registry.tables import model_keys, model_manifests, model_signatures


@dataclass(frozen=True, slots=True)
class VersionSignature:
    """A signature of a version, and its key as the registry has it."""

    key_id: str
    key_name: str
    signed_at: datetime  # when it was registered
    revoked_at: datetime | None  # of the key
    bundle: bytes


@dataclass(frozen=True, slots=True)
class VersionDetails:
    """A version with its manifest, its signatures and the names that mean it."""

    model: ModelVersion
    manifest: Manifest | None  # None: it is not signed
    signatures: Sequence[VersionSignature]
    names: Sequence[str]


def read_details(connection: sa.Connection, text: str) -> VersionDetails:
    """Return what is known of the version that a text means, for operators.

    Raises ModelNotFoundError, AmbiguousVersionError.
    """
    model = require_model(connection, text)
    manifest = read_manifest(connection, model)
    return VersionDetails(
        model,
        manifest,
        read_signatures(connection, model) if manifest is not None else (),
        names_of(LoadedNames(connection), model),
    )


def diff_versions(
    connection: sa.Connection, old: str, new: str
) -> tuple[ModelVersion, ModelVersion, Mapping[str, tuple[Any, Any]]]:
    """Return two signed versions, and by field or `files/PATH` what differs in their manifests.

    Raises ModelNotFoundError, AmbiguousVersionError, InvalidModelError.
    """
    models = [require_model(connection, text) for text in (old, new)]
    manifests = [read_manifest(connection, model) for model in models]
    for model, manifest in zip(models, manifests, strict=True):
        if manifest is None:
            raise InvalidModelError(f"{model.id} has no manifest: it is {model.verification}.")
    before, after = manifests
    assert before is not None
    assert after is not None
    return models[0], models[1], changed_fields(before, after)


def require_model(connection: sa.Connection, text: str) -> ModelVersion:
    """Return the version that a text means, for operators. Raises ModelNotFoundError."""
    model = resolve(connection, text, tenant_id=ANY_TENANT)
    if model is None:
        raise ModelNotFoundError
    return model


def read_manifest(connection: sa.Connection, model: ModelVersion) -> Manifest | None:
    """Return the manifest of a version; None if it is not signed."""
    if model.verification != "signed":
        return None
    query = sa.select(model_manifests.c.manifest).where(model_manifests.c.version == model.version)
    return decode_manifest(connection.execute(query).scalar_one())


def read_plannable(connection: sa.Connection, text: str) -> Manifest:
    """Return the manifest of the base model that a text means.

    Raises ModelNotFoundError, and InvalidModelError for a version that no memory plan exists of.
    """
    found = require_model(connection, text)
    manifest = read_manifest(connection, found)
    if manifest is None:
        raise InvalidModelError(f"{found.id} has no files to plan: it is {found.verification}.")
    if manifest.base is not None:
        raise InvalidModelError(
            f"{found.id} is an adapter: plan its base model, with the option adapters_max=1."
        )
    return manifest


def read_signatures(connection: sa.Connection, model: ModelVersion) -> list[VersionSignature]:
    """Return the signatures of a version, the oldest first."""
    query = (
        sa.select(
            model_signatures.c.key_id,
            model_keys.c.name,
            model_signatures.c.created_at,
            model_keys.c.revoked_at,
            model_signatures.c.bundle,
        )
        .join(model_keys, model_keys.c.key_id == model_signatures.c.key_id)
        .where(model_signatures.c.version == model.version)
        .order_by(model_signatures.c.created_at, model_signatures.c.key_id)
    )
    return [VersionSignature(*row) for row in connection.execute(query)]
