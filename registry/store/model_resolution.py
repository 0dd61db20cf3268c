"""Finds the version that a text means: a name, an alias, or `name@version`.

    text ─► name? ─► version
              └────► alias ─► text, at most ALIAS_DEPTH_MAX times
         ─► name@version? ─► the version that starts with those digits

Pure: the names come from a directory, which reads them from Postgres or has them in memory.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol
from uuid import UUID

from registry.errors import AliasLoopError, AmbiguousVersionError
from registry.model_version import NAME_CHARS_MAX, ModelVersion, TenantView, is_visible

ALIAS_DEPTH_MAX: Final = 8
"""Aliases between a name and its version."""

VERSION_DIGITS_MIN: Final = 12
"""Digits that name a version. Two of a million versions share 12 with a probability of 0.002."""

_TEXT: Final = re.compile(rf"[!-~]{{1,{2 * NAME_CHARS_MAX + 1}}}")  # name@version
_DIGITS: Final = re.compile(r"[0-9a-f]{1,64}")


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a name means: a version, or the text of an alias; neither if the name was removed."""

    revision: int  # grows with each change of the name
    version: ModelVersion | None = None
    alias_of: str | None = None
    tenant_id: UUID | None = None


class NameDirectory(Protocol):
    """Names and versions at one time."""

    def meaning(self, name: str) -> Meaning | None:
        """Return what a name means, also one that was removed; None for one never given."""
        ...

    def versions(self, name: str, start: str) -> Sequence[ModelVersion]:
        """Return versions of a model whose text starts with `start`: two are enough.

        A version that is exactly `start` is among them, and is the only one.
        """
        ...


def is_model_text(text: str) -> bool:
    """Whether a text may name a model at all: others need no look-up."""
    return _TEXT.fullmatch(text) is not None


def resolve_text(text: str, directory: NameDirectory, view: TenantView) -> ModelVersion | None:
    """Return the version that a text means to `view`, or None. Accepts any text.

    Retired versions are found too. Raises AmbiguousVersionError for too few digits of a version, or
    for digits that two versions start with.
    """
    if not is_model_text(text):
        return None
    target = text
    owner: UUID | None = None
    for _ in range(ALIAS_DEPTH_MAX + 1):
        meaning = directory.meaning(target)
        if meaning is None or not is_visible(meaning.tenant_id, view):
            break
        owner = owner or meaning.tenant_id
        if meaning.version is not None:
            return _named(meaning.version, text, owner, view)
        if meaning.alias_of is None:  # removed
            break
        target = meaning.alias_of
    found = _pinned(target, directory, view)
    return None if found is None else _named(found, text, owner, view)


def _named(
    found: ModelVersion, text: str, owner: UUID | None, view: TenantView
) -> ModelVersion | None:
    """Return a version as `text` names it: by a private alias it is private, too."""
    if not is_visible(found.tenant_id, view):
        return None
    if text == found.name and owner == found.tenant_id:  # most names, so no copy is made
        return found
    return replace(found, requested_name=text, tenant_id=found.tenant_id or owner)


def _pinned(text: str, directory: NameDirectory, view: TenantView) -> ModelVersion | None:
    """Return the version that `name@version` names.

    Old names and versions may hold an @ themselves, so both the last and the first may divide them;
    all others are not tried, as each costs a query.
    """
    for place in dict.fromkeys((text.rfind("@"), text.find("@"))):
        name, start = text[: max(place, 0)], text[place + 1 :]
        if not name or not start:
            continue
        found = [v for v in directory.versions(name, start) if is_visible(v.tenant_id, view)]
        exact = [version for version in found if version.version == start]
        if exact:
            return exact[0]
        digests = [version for version in found if version.verification != "legacy"]
        if not digests or not _DIGITS.fullmatch(start):
            continue
        if len(start) < VERSION_DIGITS_MIN:
            raise AmbiguousVersionError(
                f"Give at least {VERSION_DIGITS_MIN} digits of the version behind the @."
            )
        if len(digests) > 1:
            raise AmbiguousVersionError(
                "More than one version of the model starts with these digits: give more of them."
            )
        return digests[0]
    return None


def check_aliases(aliases: Mapping[str, str]) -> None:
    """Raise AliasLoopError if an alias comes back to itself or passes too many others.

    `aliases` has the text of every alias by its name.
    """
    for alias in aliases:
        target = alias
        for _ in range(ALIAS_DEPTH_MAX):
            if target not in aliases:
                break
            target = aliases[target]
            if target == alias:
                raise AliasLoopError(f"The alias {alias!r} would refer to itself.")
        else:
            if target in aliases:
                raise AliasLoopError(
                    f"The alias {alias!r} would pass more than {ALIAS_DEPTH_MAX - 1} others."
                )
