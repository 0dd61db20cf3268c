"""Removes objects of models that no registered version needs: of failed pushes, or retired ones.

The age of an object protects a push that is not yet registered. A push also counts on older objects
that it found; so it looks again for all of them under the lock of the registry, under which objects
are removed here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from registry.manifests.manifest import decode_manifest
from registry.manifests.model_objects import (
    FILES,
    MANIFESTS,
    MODELS,
    PROVENANCE,
    SIGNATURES,
    file_key,
)
from registry.store.acts import lock_registry
from registry.tables import model_manifests, model_versions
from storage.objects.object_store import ObjectInfo, ObjectStore

AGE_S_MIN: Final = 86_400.0
REMOVED_AT_ONCE: Final = 200
"""Objects that are removed under one lock: some seconds, in which nothing is registered."""

_MANIFESTS_AT_ONCE: Final = 20


@dataclass(frozen=True, slots=True)
class NeededObjects:
    """What versions need: all that were ever registered, or those that are not retired."""

    versions: frozenset[str]
    files: frozenset[str]  # keys
    last_id: int  # of the version that was registered last

    def has(self, key: str) -> bool:
        """Whether a version needs an object, or it is none that a push writes."""
        if key.startswith(FILES):
            return key in self.files
        for prefix in (MANIFESTS, SIGNATURES, PROVENANCE):
            if key.startswith(prefix):
                return key.removeprefix(prefix).partition("/")[0] in self.versions
        return True


def read_needed(connection: sa.Connection, *, with_retired: bool) -> NeededObjects:
    """Return what versions need; without retired ones if `with_retired` are to be removed, too."""
    last_id = _last_id(connection)
    of_signed = sa.select(model_versions.c.version, model_versions.c.base_version).where(
        model_versions.c.verification == "signed"
    )
    if with_retired:
        of_signed = of_signed.where(model_versions.c.retired_at.is_(None))
    rows = connection.execute(of_signed)
    versions = {version for row in rows for version in row if version is not None}
    query = sa.select(model_manifests.c.version, model_manifests.c.manifest)
    files: set[str] = set()
    found = connection.execution_options(yield_per=_MANIFESTS_AT_ONCE).execute(query)
    for version, manifest in found:
        if version in versions:
            files.update(file_key(file.sha256) for file in decode_manifest(manifest).files)
    return NeededObjects(frozenset(versions), frozenset(files), last_id)


def unneeded_objects(
    objects: ObjectStore, needed: NeededObjects, newest_s: float
) -> Iterator[ObjectInfo]:
    """Yield the objects below `models/` that no version needs and that are not newer."""
    for info in objects.list(MODELS):
        if info.modified_s <= newest_s and not needed.has(info.key):
            yield info


def remove_unneeded(
    connection: sa.Connection,
    objects: ObjectStore,
    found: Sequence[ObjectInfo],
    needed: NeededObjects,
    *,
    with_retired: bool,
) -> list[ObjectInfo]:
    """Remove objects that no version needs by now either, in one transaction; return them."""
    lock_registry(connection)
    if _last_id(connection) != needed.last_id:
        needed = read_needed(connection, with_retired=with_retired)
    removed = [info for info in found if not needed.has(info.key)]
    for info in removed:
        objects.delete(info.key)
    return removed


def _last_id(connection: sa.Connection) -> int:
    return connection.scalar(sa.select(sa.func.coalesce(sa.func.max(model_versions.c.id), 0))) or 0
