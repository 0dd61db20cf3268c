"""Registers versions of models; the version of a name that is registered last serves new jobs."""

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from registry.errors import (
    InvalidModelError,
    ModelRetiredError,
    ModelVersionConflictError,
    NameTakenError,
)
from registry.manifests.manifest import Manifest, decode_manifest, version_of
from registry.model_version import ModelVersion, check_new_name, check_version
from registry.signing.model_signature import verify_version
from registry.store.acts import lock_registry, require_owner
from registry.store.keys import trusted_key
from registry.store.name_rows import NameRows, version_of_row, version_query
from registry.store.state_publishing import publish_version
from registry.tables import model_manifests, model_signatures, model_versions
from registry.unverified_version import unverified_version

_ENGINE_OF_SIGNED: Final = "vllm"
_UNVERIFIED_ENGINES: Final = frozenset({"openai_http", "simulated"})


def register_signed_version(  # noqa: PLR0913  what a version is made of
    connection: sa.Connection,
    *,
    name: str,
    manifest_bytes: bytes,
    bundle: bytes,
    key_id: str,
    pool: str | None,
    endpoints: tuple[str, ...],
    tenant_id: UUID | None = None,
) -> ModelVersion:
    """Register the version that a manifest is, with its signature by a trusted key.

    Its files must be in the object store already. The pool and the endpoints of an adapter are
    those of its base model: `pool` may be None and `endpoints` empty. With `tenant_id` it is a
    private adapter. Registering a version again only makes it the meaning of its name. Raises
    InvalidManifestError, InvalidOptionError, InvalidSignatureError, InvalidModelError,
    ModelVersionConflictError, ModelRetiredError, NameTakenError.
    """
    check_new_name(name)
    manifest = decode_manifest(manifest_bytes)
    version = version_of(manifest_bytes)
    lock_registry(connection)
    key = trusted_key(connection, key_id)
    verify_version(bundle, {key_id: key}, version=version, files=manifest.files)
    if manifest.base is None:
        if tenant_id is not None:
            raise InvalidModelError("Only an adapter may be private.", name=name)
        if pool is None:
            raise InvalidModelError("Not valid: pool.", name=name)
    else:
        base = _adapted(connection, manifest.base, pool)
        pool, endpoints = base.pool, endpoints or base.endpoints
    _insert_manifest(connection, version, manifest, manifest_bytes)
    connection.execute(
        insert(model_signatures)
        .values(version=version, key_id=key_id, bundle=bundle)
        .on_conflict_do_nothing()
    )
    return _register(
        connection,
        name=name,
        version=version,
        pool=pool,
        engine=_ENGINE_OF_SIGNED,
        endpoints=endpoints,
        verification="signed",
        base_version=manifest.base,
        tenant_id=tenant_id,
    )


def register_unverified(  # noqa: PLR0913  what a version is made of
    connection: sa.Connection,
    *,
    name: str,
    engine: str,
    url: str,
    options: Mapping[str, Any],
    pool: str,
    endpoints: tuple[str, ...],
) -> ModelVersion:
    """Register a model that has no files of ours; its version is the digest of what is known.

    Raises as `register_signed_version`.
    """
    check_new_name(name)
    if engine not in _UNVERIFIED_ENGINES:
        raise InvalidModelError(f"A model of the engine {engine!r} has to be signed.", name=name)
    lock_registry(connection)
    return _register(
        connection,
        name=name,
        version=unverified_version(engine, url, options),
        pool=pool,
        engine=engine,
        endpoints=endpoints,
        verification="unverified",
    )


def add_model(
    connection: sa.Connection,
    name: str,
    version: str,
    *,
    pool: str,
    engine: str,
    endpoints: tuple[str, ...],
) -> ModelVersion:
    """Register a version without a digest, as releases before signed models did.

    Registering an existing version again only makes it the last one. Raises InvalidModelError for
    an invalid value, ModelVersionConflictError, ModelRetiredError, NameTakenError.
    """
    check_version(name, version, pool=pool, engine=engine, endpoints=endpoints)
    lock_registry(connection)
    return _register(
        connection,
        name=name,
        version=version,
        pool=pool,
        engine=engine,
        endpoints=endpoints,
        verification="legacy",
    )


def _register(connection: sa.Connection, **columns: Any) -> ModelVersion:
    """Insert a version unless it exists, and make it what its name means."""
    name, version, endpoints = (columns[field] for field in ("name", "version", "endpoints"))
    served = {field: columns[field] for field in ("pool", "engine", "endpoints")}
    check_version(name, version, **served)
    meaning = NameRows(connection).meaning(name)
    require_owner(name, meaning, columns.get("tenant_id"))
    if meaning is not None and meaning.alias_of is not None:
        raise NameTakenError(f"The name {name!r} is an alias: remove it first.", name=name)
    is_version = (model_versions.c.name == name) & (model_versions.c.version == version)
    found = connection.execute(version_query().where(is_version)).one_or_none()
    if found is None:
        values = columns | {"endpoints": list(endpoints)}
        connection.execute(
            insert(model_versions).values(**values, registered_at=sa.func.clock_timestamp())
        )
    else:
        _require_same(version_of_row(found), columns)
        if meaning is None or meaning.version is None or meaning.version.version != version:
            connection.execute(
                sa.update(model_versions)
                .where(is_version)
                .values(registered_at=sa.func.clock_timestamp())
            )
    registered = version_of_row(connection.execute(version_query().where(is_version)).one())
    if registered.verification == "signed":
        publish_version(connection, registered)
    return registered


def _require_same(found: ModelVersion, columns: Mapping[str, Any]) -> None:
    for field in ("pool", "engine", "verification", "base_version", "tenant_id"):
        if getattr(found, field) != columns.get(field):
            raise ModelVersionConflictError(name=found.name, version=found.version)
    if set(found.endpoints) != set(columns["endpoints"]):
        raise ModelVersionConflictError(name=found.name, version=found.version)
    if found.retired_at is not None:
        raise ModelRetiredError(name=found.name, version=found.version)


def _adapted(connection: sa.Connection, base: str, pool: str | None) -> ModelVersion:
    """Return the signed model that an adapter adapts, in the given pool if one is given."""
    query = version_query().where(
        model_versions.c.version == base,
        model_versions.c.verification == "signed",
        model_versions.c.base_version.is_(None),
    )
    rows = connection.execute(query.order_by(model_versions.c.id))
    found = [version_of_row(row) for row in rows]
    if not found:
        raise InvalidModelError("The base model of the adapter is not registered.", version=base)
    usable = [one for one in found if one.retired_at is None]
    if not usable:
        raise ModelRetiredError("The base model of the adapter is retired.", version=base)
    of_pool = [one for one in usable if pool in (None, one.pool)]
    if not of_pool:
        text = f"The pool of an adapter is that of its base model: {usable[0].pool}."
        raise InvalidModelError(text, version=base)
    return of_pool[0]


def _insert_manifest(
    connection: sa.Connection, version: str, manifest: Manifest, manifest_bytes: bytes
) -> None:
    connection.execute(
        insert(model_manifests)
        .values(version=version, manifest=manifest_bytes, total_bytes=manifest.total_bytes)
        .on_conflict_do_nothing()
    )
