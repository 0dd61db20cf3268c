"""What the column `jobs.models` holds: the pinned version and base version by name. Pure."""

from collections.abc import Mapping
from typing import Any, TypeAlias

Pin: TypeAlias = Mapping[str, str]
"""`version`, and of an adapter `base_version`: the version of the model that it adapts."""


def pin_of(version: str, base_version: str | None) -> dict[str, str]:
    """Return the entry of a name."""
    return {"version": version, "base_version": base_version or ""}


def pins_of(job: Any) -> Mapping[str, Pin]:
    """Return the entry of each name of a job, by its row.

    The column is NULL if all requests have one name and it means no adapter.
    """
    return job.models or {job.model: pin_of(job.model_version, None)}


def required_version(pin: Pin) -> str:
    """Return the version of a base model that a replica must have warm for a name."""
    return pin.get("base_version") or pin["version"]
