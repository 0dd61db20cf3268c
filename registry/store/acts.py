"""Serialises changes of the registry, and checks who owns a name and which revision it has."""

from collections.abc import Callable
from typing import Final, TypeAlias
from uuid import UUID

import sqlalchemy as sa

from registry.errors import NameTakenError, RevisionMismatchError
from registry.store.model_resolution import Meaning

_LOCK_KEY: Final = 0x6D6F64656C73

AllowsRevision: TypeAlias = Callable[[int], bool]
"""Whether a name may be changed at this revision; 0: it does not exist, or was removed."""


def lock_registry(connection: sa.Connection) -> None:
    """Wait until no other transaction changes the registry, and let none until the commit.

    Changes are rare. One lock for all of them keeps rules that span rows, such as that no alias
    refers to itself, and makes revisions grow in the order of commits. Releases before signed
    models do not take it; they only add versions.
    """
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_KEY)))


def revision_of(meaning: Meaning | None) -> int:
    """Return the revision of a name; 0 if it does not exist, or was removed."""
    is_present = meaning is not None and (meaning.version or meaning.alias_of) is not None
    return meaning.revision if is_present and meaning is not None else 0


def require_revision(meaning: Meaning | None, allows: AllowsRevision | None) -> None:
    """Raise RevisionMismatchError unless the name may be changed at its revision."""
    revision = revision_of(meaning)
    if allows is not None and not allows(revision):
        raise RevisionMismatchError(revision=revision)


def require_owner(name: str, meaning: Meaning | None, tenant_id: UUID | None) -> None:
    """Raise NameTakenError unless the name is free or belongs to the tenant.

    A name belongs for ever to the tenant, or to all tenants, that it was given first: so what a
    name means never depends on who asks.
    """
    if meaning is not None and meaning.tenant_id != tenant_id:
        owner = "all tenants" if meaning.tenant_id is None else "a tenant"
        raise NameTakenError(f"The name {name!r} belongs to {owner}.", name=name)
