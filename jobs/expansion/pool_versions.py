"""Which model versions each pool serves: a job without its version takes no part in windows.

Nothing of such a job ends: its outstanding items would fill the windows of its tenant and pool, and
after the stall limit all of them would be emitted again. It waits in its file, where it costs
nothing, until a replica has its version warm.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from jobs.store.model_pins import pins_of
from topics.records.eligibility import may_be_listed, runnable_models
from topics.records.records import Capacity

PoolVersions: TypeAlias = Mapping[str, frozenset[str]]
"""The versions that replicas have warm, of pools whose replicas list versions.

`UNLISTED` is among them if a replica lists none. A version with `ADAPTER_MARK` at its end is
warm at a replica that takes adapters of it.
"""

UNLISTED: Final = ""

ADAPTER_MARK: Final = "+"
"""At the end of a version: its adapters, or one of them."""

SEPARATOR: Final = "\n"
"""Between the versions that a job needs, in the text that a load has."""


def versions_by_pool(capacities: Iterable[Capacity]) -> dict[str, frozenset[str]]:
    """Return what the available replicas of each pool can run.

    Without pools whose replicas list no versions.
    """
    found: dict[str, frozenset[str]] = {}
    for capacity in capacities:
        if not capacity.available:
            continue
        models = runnable_models(capacity.models)
        versions = models.versions or frozenset({UNLISTED})
        if models.takes_adapters:
            versions |= {version + ADAPTER_MARK for version in versions}
        found[capacity.pool] = found.get(capacity.pool, frozenset()) | versions
    return {pool: versions for pool, versions in found.items() if versions != {UNLISTED}}


def has_versions(pools: PoolVersions, pool: str, required: str) -> bool:
    """Return whether a pool can run all versions of a text of versions, as far as it is known."""
    known = pools.get(pool)
    if known is None or not required or required in known:
        return True
    return all(_has_version(known, version) for version in required.split(SEPARATOR))


def _has_version(known: frozenset[str], version: str) -> bool:
    if version in known:
        return True
    if UNLISTED not in known or version.endswith(ADAPTER_MARK):
        return False
    return not may_be_listed(version, was_listed=False, pool_lists=True)


def required_text(version: str, base_version: str) -> str:
    """Return the version of a model, or that of an adapter's base, as a job needs it."""
    return base_version + ADAPTER_MARK if base_version else version


def required_versions(row: Any) -> str:
    """Return the versions of base models that a batch needs, by its row of `jobs`, as one text.

    Empty before its verdict.
    """
    if row.model_version is None:  # the file has no verdict yet
        return ""
    required = {
        required_text(pin["version"], pin.get("base_version") or "")
        for pin in pins_of(row).values()
    }
    return SEPARATOR.join(sorted(required))


class LatestPoolVersions:
    """The newest known versions of all pools. Safe for threads."""

    def __init__(self) -> None:
        """Start without knowledge: no job is kept from running."""
        self._by_pool: PoolVersions = {}

    @property
    def by_pool(self) -> PoolVersions:
        """The versions by pool; replaced as a whole when they change."""
        return self._by_pool

    def update(self, by_pool: PoolVersions) -> None:
        """Set the versions."""
        if by_pool != self._by_pool:
            self._by_pool = by_pool
