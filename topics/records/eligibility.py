"""Which replicas may run which work: those with its model version and, if need be, adapters. Pure.

An item of an adapter needs the base model of the adapter. A replica that lists no version runs one
that is not known by content: a release before versions by content, a folder, an HTTP server.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from topics.records.records import Capacity, JobRef, LoadedModel

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class LoadState(StrEnum):
    """The state of a model version at a replica."""

    LOADING = "loading"
    WARM = "warm"
    REFUSED = "refused"  # it did not pass verification, or its warm-up failed


class RequiredModel(NamedTuple):
    """What a replica must have to run work."""

    version: str  # of a base model
    has_adapter: bool = False  # an adapter of it runs


class RunnableModels(NamedTuple):
    """What a replica publishes that it can run."""

    versions: frozenset[str] = frozenset()  # of base models that are warm; none: it lists none
    takes_adapters: bool = False


def required_model(job: JobRef) -> RequiredModel:
    """Return what a replica must have to run items of the job."""
    return RequiredModel(job.base_version or job.model_version, bool(job.base_version))


def is_digest(version: str) -> bool:
    """Return whether a version is a SHA-256 digest: of a manifest, or of an engine's settings."""
    return _DIGEST.fullmatch(version) is not None


def is_eligible(required: RequiredModel, models: RunnableModels, *, is_listed: bool) -> bool:
    """Return whether a replica may run work.

    One without a list of versions never runs an adapter: it would run the base model, or refuse. It
    runs no version that other replicas of its pool list (`is_listed`, see `may_be_listed`).
    """
    if models.versions:
        takes_it = models.takes_adapters or not required.has_adapter
        return takes_it and required.version in models.versions
    return not required.has_adapter and not is_listed


def may_be_listed(version: str, *, was_listed: bool, pool_lists: bool) -> bool:
    """Return whether only replicas that list a version may run it.

    They are if a replica of the pool has listed it (`was_listed`). So are all digests while any
    replica of the pool lists versions (`pool_lists`): a signed version cannot be told from a digest
    of settings, and a wait is better than other weights.
    """
    return was_listed or (pool_lists and is_digest(version))


def warm_versions(models: Iterable[LoadedModel]) -> frozenset[str]:
    """Return the versions that are warm."""
    return frozenset(model.version for model in models if model.state == LoadState.WARM)


def runnable_models(models: Iterable[LoadedModel]) -> RunnableModels:
    """Return what a replica can run, by the models that it publishes on `capacity`."""
    warm = [model for model in models if model.state == LoadState.WARM]
    return RunnableModels(
        frozenset(model.version for model in warm), any(model.adapters_max for model in warm)
    )


def is_starting(capacity: Capacity) -> bool:
    """Return whether a replica has not served yet: it loads its model, or has refused it.

    Such a replica is shown to operators. It counts for nothing else.
    """
    return bool(capacity.models) and not warm_versions(capacity.models)


def is_asleep(capacity: Capacity) -> bool:
    """Return whether a replica is in standby: loaded, and outside of the group of its pool."""
    return capacity.lifecycle == "asleep"
