"""Pins the models of a job: its names keep what they meant when the job was created (ADR 106)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from jobs.store.model_pins import pin_of, pins_of, required_version
from jobs.validation.model_rule import PinnedModels
from registry.errors import AmbiguousVersionError
from registry.models import ModelVersion, resolve


@dataclass(frozen=True, slots=True)
class ModelsAtCreation:
    """Finds what names meant to a tenant when its job was created. Thread-safe."""

    engine: sa.Engine
    tenant_id: UUID
    created_at: datetime

    def find(self, name: str) -> ModelVersion | None:
        """Return the version of a name, alias or `name@version`; None for one that is unknown.

        A version that was retired since then is not retired for the job. Raises one of
        DATABASE_UNAVAILABLE.
        """
        with self.engine.begin() as connection:
            try:
                found = resolve(connection, name, tenant_id=self.tenant_id, at=self.created_at)
            except AmbiguousVersionError:
                return None
        if found is None or found.retired_at is None or found.retired_at <= self.created_at:
            return found
        return replace(found, retired_at=None)


def pinned_models(job: sa.Row[Any]) -> PinnedModels:
    """Return what a row of `jobs` with a verdict has pinned."""
    pins = pins_of(job)
    base_version = required_version(pins[job.model])
    versions = {name: pin["version"] for name, pin in pins.items()}
    return PinnedModels(versions, job.pool, base_version)


def new_pins(names: Mapping[str, ModelVersion]) -> dict[str, dict[str, str]]:
    """Return the entries of new names."""
    return {name: pin_of(version.version, version.base_version) for name, version in names.items()}


def model_columns(names: Mapping[str, ModelVersion]) -> dict[str, object]:
    """Return the columns of a job that pin the models of its first file.

    `model` and `model_version` are those of the first request. `models` is left out if they tell
    all: of one name that means no adapter.
    """
    name, version = next(iter(names.items()))
    columns: dict[str, object] = {
        "model": name,
        "model_version": version.version,
        "pool": version.pool,
    }
    if len(names) > 1 or version.base_version:
        columns["models"] = new_pins(names)
    return columns
