"""Which model versions each pool serves: a job without its version takes no part in windows.

Nothing of such a job ends: its outstanding items would fill the windows of its tenant and pool, and
after the stall limit all of them would be emitted again. It waits in its file, where it costs
nothing, until a replica has its version warm.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from topics.records.eligibility import warm_versions
from topics.records.records import Capacity

PoolVersions: TypeAlias = Mapping[str, frozenset[str]]
"""The versions that replicas have warm, of pools that do not run every version."""

SEPARATOR: Final = "\n"
"""Between the versions that a job needs, in the text that a load has."""


def versions_by_pool(capacities: Iterable[Capacity]) -> dict[str, frozenset[str]]:
    """Return what the available replicas of each pool have warm.

    Without pools that have a replica for every version, and without those that have none at all.
    """
    found: dict[str, frozenset[str]] = {}
    any_version: set[str] = set()
    for capacity in capacities:
        if not capacity.available:
            continue
        versions = warm_versions(capacity.models)
        if not versions:
            any_version.add(capacity.pool)
        found[capacity.pool] = found.get(capacity.pool, frozenset()) | versions
    return {pool: versions for pool, versions in found.items() if pool not in any_version}


def has_versions(pools: PoolVersions, pool: str, required: str) -> bool:
    """Return whether a pool has all versions of a text of versions, as far as it is known."""
    known = pools.get(pool)
    return known is None or required in known or known.issuperset(required.split(SEPARATOR))


def required_versions(row: Any) -> str:
    """Return the versions of base models that a batch needs, by its row of `jobs`, as one text."""
    pins: Mapping[str, Mapping[str, str]] | None = row.models
    if not pins:
        return str(row.model_version)
    of_pins = {pin.get("base_version") or pin["version"] for pin in pins.values()}
    return SEPARATOR.join(sorted(of_pins))


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
