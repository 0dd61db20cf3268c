"""Which model versions a replica serves, and which version an item needs. Pure.

An item of an adapter needs the base model of the adapter. A replica that names no version serves
whatever its pool receives: one of an earlier release, or an engine whose version is not registered
by its content.
"""

from collections.abc import Collection, Iterable
from enum import StrEnum

from topics.records.records import Capacity, JobRef, LoadedModel


class LoadState(StrEnum):
    """The state of a model version at a replica."""

    LOADING = "loading"
    WARM = "warm"
    REFUSED = "refused"  # it did not pass verification, or its warm-up failed


def required_version(job: JobRef) -> str:
    """Return the version of a base model that a replica must have warm to run items of the job."""
    return job.base_version or job.model_version


def is_served(version: str, versions: Collection[str]) -> bool:
    """Return whether a replica that publishes these `versions` runs items that need `version`."""
    return not versions or version in versions


def warm_versions(models: Iterable[LoadedModel]) -> frozenset[str]:
    """Return the versions that are warm."""
    return frozenset(model.version for model in models if model.state == LoadState.WARM)


def is_starting(capacity: Capacity) -> bool:
    """Return whether a replica has not served yet: it loads its model, or has refused it.

    Such a replica is shown to operators. It counts for nothing else.
    """
    return bool(capacity.models) and not warm_versions(capacity.models)
