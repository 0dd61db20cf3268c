"""Goal: names, aliases and `name@version` mean what a plain model says, and to no other tenant."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import AliasLoopError, AmbiguousVersionError
from registry.model_version import ANY_TENANT, ModelVersion, TenantView
from registry.store.model_resolution import (
    ALIAS_DEPTH_MAX,
    VERSION_DIGITS_MIN,
    Meaning,
    check_aliases,
    resolve_text,
)

TENANTS = (None, UUID(int=1), UUID(int=2))
NAMES = tuple("abcdefghij")
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


def version(name: str, number: int, tenant_id: UUID | None) -> ModelVersion:
    digest = sha256(f"{name}{number}".encode()).hexdigest()
    return ModelVersion(name, digest, "p", "vllm", (), LONG_AGO, "signed", tenant_id=tenant_id)


@dataclass
class Names:
    """Names in memory."""

    meanings: dict[str, Meaning] = field(default_factory=dict)
    known: list[ModelVersion] = field(default_factory=list)

    def meaning(self, name: str) -> Meaning | None:
        return self.meanings.get(name)

    def versions(self, name: str, start: str) -> Sequence[ModelVersion]:
        return [v for v in self.known if v.name == name and v.version.startswith(start)][:2]


@st.composite
def named(draw: st.DrawFn) -> Names:
    """Names of which some are models, some aliases, and some removed."""
    names = Names()
    for revision, name in enumerate(NAMES, 1):
        tenant_id = draw(st.sampled_from(TENANTS))
        kind = draw(st.sampled_from(["model", "alias", "alias", "removed", "none"]))
        target = draw(st.sampled_from(NAMES))
        if kind == "model":
            versions = [version(name, number, tenant_id) for number in range(2)]
            names.known += versions
            names.meanings[name] = Meaning(revision, versions[-1], tenant_id=tenant_id)
        elif kind != "none":
            alias_of = target if kind == "alias" else None
            names.meanings[name] = Meaning(revision, alias_of=alias_of, tenant_id=tenant_id)
    return names


def expected(names: Names, name: str, view: TenantView, left: int) -> ModelVersion | None:
    """The plain model of what a name means."""
    meaning = names.meanings.get(name)
    if meaning is None or (view is not ANY_TENANT and meaning.tenant_id not in (None, view)):
        return None
    if meaning.version is not None:
        return meaning.version
    if meaning.alias_of is None or left == 0:
        return None
    return expected(names, meaning.alias_of, view, left - 1)


@given(named(), st.sampled_from(NAMES), st.sampled_from([*TENANTS, ANY_TENANT]))
def test_a_name_means_what_the_model_says(names: Names, name: str, view: TenantView) -> None:
    found = resolve_text(name, names, view)
    wanted = expected(names, name, view, ALIAS_DEPTH_MAX)
    assert (found and found.id) == (wanted and wanted.id)
    if found is not None:
        assert found.requested_name == name
        assert found.tenant_id is None or view in (ANY_TENANT, found.tenant_id)


@given(named(), st.data(), st.sampled_from([*TENANTS, ANY_TENANT]))
def test_digits_name_the_version_that_starts_with_them(
    names: Names, data: st.DataObject, view: TenantView
) -> None:
    if not names.known:
        return
    one = data.draw(st.sampled_from(names.known))
    count = data.draw(st.integers(1, 64))
    text = f"{one.name}@{one.version[:count]}"
    is_visible = one.tenant_id is None or view in (ANY_TENANT, one.tenant_id)
    if is_visible and count < VERSION_DIGITS_MIN:
        with pytest.raises(AmbiguousVersionError):
            resolve_text(text, names, view)
        return
    found = resolve_text(text, names, view)
    assert (found and found.id) == (one.id if is_visible else None)


@given(named(), st.text(max_size=20), st.sampled_from([*TENANTS, ANY_TENANT]))
def test_any_text_is_resolved_or_refused(names: Names, text: str, view: TenantView) -> None:
    try:
        found = resolve_text(text, names, view)
    except AmbiguousVersionError:
        assert "@" in text
        return
    assert found is None or found.requested_name == text


def test_digits_of_two_versions_are_refused() -> None:
    twins = [
        ModelVersion("m", "0123456789ab" + end * 52, "p", "vllm", (), LONG_AGO, "signed")
        for end in "cd"
    ]
    names = Names(known=twins)
    with pytest.raises(AmbiguousVersionError, match="More than one"):
        resolve_text("m@0123456789ab", names, None)
    found = resolve_text("m@0123456789abc", names, None)
    assert found is not None
    assert found.version == twins[0].version


@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(NAMES)))
def test_aliases_are_accepted_if_each_ends_within_the_limit(aliases: dict[str, str]) -> None:
    def length(name: str, left: int = 2 * ALIAS_DEPTH_MAX) -> int:
        return 0 if name not in aliases or left == 0 else 1 + length(aliases[name], left - 1)

    is_accepted = True
    try:
        check_aliases(aliases)
    except AliasLoopError:
        is_accepted = False
    assert is_accepted == all(length(name) <= ALIAS_DEPTH_MAX for name in aliases)
