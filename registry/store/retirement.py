"""Retires versions: no replica loads a retired version again, and no new job gets it."""

from collections.abc import Callable
from typing import Final, TypeAlias

import sqlalchemy as sa

from registry.errors import ModelInUseError, ModelNotFoundError
from registry.model_version import ANY_TENANT, ModelVersion
from registry.store.acts import lock_registry
from registry.store.aliases import names_of
from registry.store.name_rows import LoadedNames, resolve, version_of_row, version_query
from registry.store.state_publishing import publish_version
from registry.tables import model_versions

_SHOWN_MAX: Final = 5  # names in a message

CountJobs: TypeAlias = Callable[[sa.Connection, ModelVersion], int]
"""Returns how many unfinished jobs use a version. Jobs are above the registry."""


def retire(
    connection: sa.Connection, text: str, *, count_jobs: CountJobs, force: bool = False
) -> ModelVersion:
    """Retire the version that `name@version` names, for good; return it.

    Refused while a name or an alias means it, or an adapter adapts it; and while unfinished jobs
    use it, unless `force`: their items then wait, as no replica loads the version again. Retiring a
    retired version publishes its state once more. Raises ModelNotFoundError, ModelInUseError,
    AmbiguousVersionError.
    """
    lock_registry(connection)
    version = resolve(connection, text, tenant_id=ANY_TENANT)
    if version is None:
        raise ModelNotFoundError("Nothing has this name.")
    names = names_of(LoadedNames(connection), version)
    if names and version.retired_at is None:
        raise ModelInUseError(
            f"These names mean this version: {_listed(names)}. Let them mean another version, or "
            "remove them, first."
        )
    if adapters := _adapters(connection, version):
        raise ModelInUseError(f"Adapters adapt this version: {_listed(adapters)}.")
    jobs = 0 if force else count_jobs(connection, version)
    if jobs:
        raise ModelInUseError(f"Unfinished jobs use this version: {jobs}.")
    is_version = (model_versions.c.name == version.name) & (
        model_versions.c.version == version.version
    )
    if version.retired_at is None:
        connection.execute(
            sa.update(model_versions).where(is_version).values(retired_at=sa.func.clock_timestamp())
        )
    retired = version_of_row(connection.execute(version_query().where(is_version)).one())
    publish_version(connection, retired)
    return retired


def _adapters(connection: sa.Connection, version: ModelVersion) -> list[str]:
    """Return the adapters in use that would lose their base, the only one of its digest."""
    others = version_query().where(
        model_versions.c.version == version.version,
        model_versions.c.name != version.name,
        model_versions.c.retired_at.is_(None),
    )
    if connection.execute(others.limit(1)).first() is not None:
        return []
    adapters = version_query().where(
        model_versions.c.base_version == version.version, model_versions.c.retired_at.is_(None)
    )
    return [version_of_row(row).id for row in connection.execute(adapters.limit(_SHOWN_MAX + 1))]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN_MAX]) + (", …" if len(names) > _SHOWN_MAX else "")
