"""What this replica publishes of its model: the version, the engine that runs it, its adapters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from topics.records.eligibility import LoadState, RunnableModels, is_eligible, required_model
from topics.records.records import JobRef, LoadedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmModel:
    """The model of a replica that has warmed up.

    Without a version the replica serves whatever its pool receives but adapters, as releases did
    before models had versions by content.
    """

    version: str = ""  # of the base model; empty: any
    engine: str = ""  # hash of the engine; empty: unknown
    adapters_max: int = 0  # adapters that the engine loads at once
    adapters: Callable[[], Sequence[str]] = tuple
    """Returns the versions of the adapters that the engine holds now."""

    @property
    def versions(self) -> list[str]:
        """The versions of base models that are warm here; none: not known by content."""
        return [self.version] if self.version else []

    def loaded(self) -> list[LoadedModel]:
        """Return the models as they are now; none without a version."""
        if not self.version:
            return []
        return [
            LoadedModel(
                self.version,
                LoadState.WARM.value,
                self.engine,
                list(self.adapters()),
                adapters_max=self.adapters_max,
            )
        ]

    def serves(self, job: JobRef) -> bool:
        """Return whether items of a job may run here."""
        models = RunnableModels(frozenset(self.versions), self.adapters_max > 0)
        return is_eligible(required_model(job), models, is_listed=False)


ANY_VERSION = WarmModel()
"""The model of a replica that serves whatever its pool receives but adapters."""
