"""Reads what names mean from Postgres: at a time, for a tenant or an operator."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import distinct_on

from registry.model_version import ANY_TENANT, ModelVersion, TenantView
from registry.store.model_resolution import Meaning, resolve_text
from registry.tables import model_names, model_versions

_VERSION_COLUMNS: Final = tuple(
    model_versions.c[field.name] for field in fields(ModelVersion) if field.name in model_versions.c
)
_MEANING_COLUMNS: Final = slice(len(_VERSION_COLUMNS), len(_VERSION_COLUMNS) + 3)
_KNOWN_NAME: Final = len(_VERSION_COLUMNS) + 3


def version_query() -> sa.Select[Any]:
    """Return the query of versions, whose rows `version_of_row` reads."""
    return sa.select(*_VERSION_COLUMNS)


def version_of_row(row: Sequence[Any]) -> ModelVersion:
    """Return the version in the first columns of a row of `version_query`."""
    name, version, pool, engine, endpoints, *others = row[: len(_VERSION_COLUMNS)]
    return ModelVersion(name, version, pool, engine, tuple(endpoints), *others)


class NameRows:
    """A `NameDirectory` that queries Postgres."""

    def __init__(self, connection: sa.Connection, at: datetime | None = None) -> None:
        """Names as they were at a time, or as they are now."""
        self._connection, self._at = connection, at

    def meaning(self, name: str) -> Meaning | None:
        """See `NameDirectory`."""
        query = _meanings(self._at).where(model_names.c.name == name)
        row = self._connection.execute(query.order_by(model_names.c.id.desc()).limit(1)).first()
        return None if row is None else _meaning(row)

    def versions(self, name: str, start: str) -> Sequence[ModelVersion]:
        """See `NameDirectory`."""
        version = model_versions.c.version
        is_digest = model_versions.c.verification != "legacy"
        query = (
            version_query()
            .where(model_versions.c.name == name)
            .where((version == start) | (is_digest & sa.func.starts_with(version, start)))
            .order_by((version == start).desc(), version)
            .limit(2)
        )
        return [version_of_row(row) for row in self._connection.execute(query)]


class LoadedNames:
    """A `NameDirectory` in memory: all names, and the versions that their aliases pin."""

    def __init__(self, connection: sa.Connection) -> None:
        """Read the names that the connection may see."""
        latest = _meanings(None).ext(distinct_on(model_names.c.name))
        latest = latest.order_by(model_names.c.name, model_names.c.id.desc())
        rows = connection.execute(latest).all()
        self.meanings: Mapping[str, Meaning] = {row[_KNOWN_NAME]: _meaning(row) for row in rows}
        self._rows = NameRows(connection)
        self._pinned = _read_pinned(connection, self.aliases.values())

    @property
    def aliases(self) -> Mapping[str, str]:
        """The text of each alias, by its name."""
        return {
            name: meaning.alias_of
            for name, meaning in self.meanings.items()
            if meaning.alias_of is not None
        }

    def meaning(self, name: str) -> Meaning | None:
        """See `NameDirectory`."""
        return self.meanings.get(name)

    def versions(self, name: str, start: str) -> Sequence[ModelVersion]:
        """See `NameDirectory`. Queries what no alias pins."""
        pinned = self._pinned.get(f"{name}@{start}")
        return self._rows.versions(name, start) if pinned is None else [pinned]

    def serving(self, view: TenantView = ANY_TENANT) -> list[ModelVersion]:
        """Return the version of every name that has one, also retired ones, by name."""
        found = (resolve_text(name, self, view) for name in sorted(self.meanings))
        return [version for version in found if version is not None]


def resolve(
    connection: sa.Connection, text: str, *, tenant_id: TenantView, at: datetime | None = None
) -> ModelVersion | None:
    """Return the version that a name, an alias or `name@version` means, now or at a time.

    Accepts any text. Returns retired versions, too, and None for what the tenant may not see.
    Raises AmbiguousVersionError.
    """
    return resolve_text(text, NameRows(connection, at), tenant_id)


def name_history(
    connection: sa.Connection, name: str, *, limit: int
) -> list[tuple[datetime, Meaning]]:
    """Return since when a name meant what, newest first, for operators."""
    query = _meanings(None).add_columns(model_names.c.set_at)
    query = query.where(model_names.c.name == name).order_by(model_names.c.id.desc()).limit(limit)
    return [(row.set_at, _meaning(row)) for row in connection.execute(query)]


def _read_pinned(connection: sa.Connection, texts: Iterable[str]) -> dict[str, ModelVersion]:
    """Return the versions of aliases of the form `name@version`, which have it whole."""
    places = [text.rpartition("@") for text in texts if "@" in text]
    if not places:
        return {}
    key = sa.tuple_(model_versions.c.name, model_versions.c.version)
    found = connection.execute(
        version_query().where(key.in_([(name, version) for name, _, version in places]))
    )
    versions = [version_of_row(row) for row in found]
    return {version.id: version for version in versions}


def _meanings(at: datetime | None) -> sa.Select[Any]:
    query = sa.select(
        *_VERSION_COLUMNS,
        model_names.c.id,
        model_names.c.alias_of,
        model_names.c.tenant_id,
        model_names.c.name,
    ).select_from(
        model_names.outerjoin(model_versions, model_versions.c.id == model_names.c.version_id)
    )
    return query if at is None else query.where(model_names.c.set_at <= at)


def _meaning(row: Sequence[Any]) -> Meaning:
    """Return the meaning in a row of `_meanings`."""
    revision, alias_of, owner = row[_MEANING_COLUMNS]
    return Meaning(revision, None if row[0] is None else version_of_row(row), alias_of, owner)


def without_retired(found: ModelVersion | None) -> ModelVersion | None:
    """Return the version unless it is retired: new work gets no retired one."""
    return None if found is None or found.retired_at is not None else found
