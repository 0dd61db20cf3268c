"""Aliases: other names of models and versions, and the removal of names."""

from typing import Final
from uuid import UUID

import sqlalchemy as sa

from registry.errors import (
    InvalidModelError,
    ModelInUseError,
    ModelNotFoundError,
    ModelRetiredError,
    NameTakenError,
)
from registry.model_version import ANY_TENANT, ModelVersion, check_new_name
from registry.store.acts import (
    AllowsRevision,
    lock_registry,
    require_owner,
    require_revision,
    revision_of,
)
from registry.store.model_resolution import Meaning, check_aliases, resolve_text
from registry.store.name_rows import LoadedNames, NameRows
from registry.tables import model_names, model_versions

ALIASES_MAX: Final = 10_000


def set_alias(
    connection: sa.Connection,
    alias: str,
    target: str,
    *,
    tenant_id: UUID | None = None,
    allows: AllowsRevision | None = None,
) -> Meaning:
    """Let a name mean what another name means, or the version that `name@version` names.

    A name is followed: the alias means what it means at the time of a request. A version is pinned
    with all its digits. `tenant_id`: for this tenant only, and always for it. `allows` is asked
    with the alias' revision, unless the alias means that already. Raises ModelNotFoundError,
    ModelRetiredError, AmbiguousVersionError, InvalidModelError, NameTakenError, AliasLoopError,
    RevisionMismatchError.
    """
    check_new_name(alias)
    lock_registry(connection)
    names = LoadedNames(connection)
    before = names.meaning(alias)
    require_owner(alias, before, tenant_id)
    is_model = sa.select(model_versions.c.id).where(model_versions.c.name == alias).limit(1)
    if connection.scalar(is_model) is not None:
        raise NameTakenError(f"{alias!r} is the name of a model.", name=alias)
    text = _normal_target(names, target, tenant_id)
    if before is not None and before.alias_of == text:
        return before  # also to the retry of a change whose response was lost
    require_revision(before, allows)
    aliases = {**names.aliases, alias: text}
    check_aliases(aliases)
    if len(aliases) > ALIASES_MAX:
        raise InvalidModelError(f"There are {ALIASES_MAX} aliases: no more can be set.")
    _append(connection, alias, text, tenant_id)
    after = NameRows(connection).meaning(alias)
    assert after is not None
    return after


def remove_name(
    connection: sa.Connection, name: str, *, allows: AllowsRevision | None = None
) -> Meaning:
    """Let a name mean nothing any more; return what it meant.

    Of a model, too: its versions stay, and registering one again gives the name its meaning back.
    Raises ModelNotFoundError, ModelInUseError, RevisionMismatchError.
    """
    lock_registry(connection)
    names = LoadedNames(connection)
    before = names.meaning(name)
    if before is None or not revision_of(before):
        raise ModelNotFoundError("No model or alias has this name.", name=name)
    require_revision(before, allows)
    dependent = sorted(alias for alias, text in names.aliases.items() if text == name)
    if dependent:
        raise ModelInUseError(f"The name {name!r} has aliases: {', '.join(dependent[:5])}.")
    _append(connection, name, None, before.tenant_id)
    return before


def _normal_target(names: LoadedNames, target: str, tenant_id: UUID | None) -> str:
    """Return the text of an alias: a name as it is, or `name@version` with the whole version."""
    found = resolve_text(target, names, tenant_id)
    if found is None:
        if resolve_text(target, names, ANY_TENANT) is not None:
            text = "An alias that others see cannot mean a tenant's private adapter."
            raise InvalidModelError(text)
        raise ModelNotFoundError("The target of the alias does not exist.")
    if found.retired_at is not None:
        raise ModelRetiredError(name=found.name, version=found.version)
    return target if revision_of(names.meaning(target)) else found.id


def _append(
    connection: sa.Connection, name: str, alias_of: str | None, tenant_id: UUID | None
) -> None:
    connection.execute(
        model_names.insert().values(name=name, alias_of=alias_of, tenant_id=tenant_id).inline()
    )


def names_of(names: LoadedNames, version: ModelVersion) -> list[str]:
    """Return the names that mean a version, aliases among them."""
    found = names.serving()
    return [one.requested_name for one in found if one.id == version.id]
