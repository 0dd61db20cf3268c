"""The model registry: finds the version that serves new jobs, and lists models, names and pools.

Versions are registered and names are changed in `registry.store`.
"""

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from registry.errors import (
    AmbiguousVersionError,
    InvalidModelError,
    ModelVersionConflictError,
)
from registry.model_version import (
    ANY_TENANT,
    ENDPOINTS,
    ENGINES,
    NAME_CHARS_MAX,
    ModelVersion,
    TenantView,
)
from registry.store.model_resolution import is_model_text
from registry.store.name_rows import (
    LoadedNames,
    resolve,
    version_of_row,
    version_query,
    without_retired,
)
from registry.store.registration import add_model
from registry.tables import model_versions

__all__ = [
    "ANY_TENANT",
    "ENDPOINTS",
    "ENGINES",
    "NAME_CHARS_MAX",
    "InvalidModelError",
    "ModelVersion",
    "ModelVersionConflictError",
    "add_model",
    "find_model",
    "find_retired",
    "is_model_text",
    "list_models",
    "list_pools",
    "list_served_pools",
    "list_versions",
    "resolve",
]


def list_models(connection: sa.Connection, *, tenant_id: TenantView = None) -> list[ModelVersion]:
    """Return the version of every name that new jobs may use, aliases among them, by name.

    `requested_name` has the name. Private adapters are listed for their tenant and for operators.
    """
    found = LoadedNames(connection).serving(tenant_id)
    return [version for version in found if version.retired_at is None]


def find_model(
    connection: sa.Connection, name: str, *, tenant_id: TenantView = None
) -> ModelVersion | None:
    """Return the version that new jobs get for a name, an alias or `name@version`, or None.

    Accepts any text; returns None for a retired version, and for digits that name none or several.
    """
    try:
        return without_retired(resolve(connection, name, tenant_id=tenant_id))
    except AmbiguousVersionError:
        return None


def find_retired(connection: sa.Connection, known: Collection[ModelVersion]) -> set[str]:
    """Return the ids (`name@version`) of those versions that are retired."""
    texts = sorted({one.version for one in known})
    query = version_query().where(
        model_versions.c.version == sa.any_(sa.cast(texts, sa.ARRAY(sa.Text))),
        model_versions.c.retired_at.is_not(None),
    )
    retired = {version_of_row(row).id for row in connection.execute(query)} if texts else set()
    return retired & {one.id for one in known}


def list_versions(
    connection: sa.Connection,
    *,
    name: str | None = None,
    verification: str | None = None,
    retired: bool | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> list[ModelVersion]:
    """Return versions, old and retired ones too, by their id `name@version`, for operators.

    Those behind the id `after`, which need not exist.
    """
    version_id = (model_versions.c.name + "@" + model_versions.c.version).collate("C")
    conditions: list[sa.ColumnElement[Any]] = []
    if name is not None:
        conditions.append(model_versions.c.name == name)
    if verification is not None:
        conditions.append(model_versions.c.verification == verification)
    if retired is not None:
        conditions.append(model_versions.c.retired_at.is_not(None) == retired)
    if after is not None:
        conditions.append(version_id > after)
    query = version_query().where(*conditions).order_by(version_id).limit(limit)
    return [version_of_row(row) for row in connection.execute(query)]


def list_pools(connection: sa.Connection) -> dict[str, list[str]]:
    """Return the pools of all model versions, old ones too, with the versions as `name@version`."""
    columns = (model_versions.c.pool, model_versions.c.name, model_versions.c.version)
    pools: dict[str, list[str]] = {}
    for pool, name, version in connection.execute(sa.select(*columns).order_by(*columns)):
        pools.setdefault(pool, []).append(f"{name}@{version}")
    return pools


def list_served_pools(connection: sa.Connection) -> list[str]:
    """Return the pools, by name, of the versions that new jobs of any tenant get for a name."""
    return sorted({one.pool for one in list_models(connection, tenant_id=ANY_TENANT)})
