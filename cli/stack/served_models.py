"""The models that an embedded stack serves, with one pool and one replica for each."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from core.errors import SettingsError
from registry.models import ENDPOINTS
from registry.pool_names import POOL_VERSION_DIGITS, pool_name


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedObjects:
    """The manifest of a version and a signature of it, as they are stored."""

    manifest: bytes
    bundle: bytes
    key_pem: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model version and its pool."""

    name: str
    version: str
    engine: str
    endpoints: tuple[str, ...]
    signed: SignedObjects | None = None  # of a vllm model: what its replica verifies

    @property
    def pool(self) -> str:
        """The name of the pool, which contains the version: pools never mix versions."""
        return pool_name(self.name, self.version)


def served_models(
    names: Sequence[str], engine: str, upstream: str | None
) -> tuple[ServedModel, ...]:
    """Return the models of an engine that holds no weights, by the names of every `--model`.

    Raises SettingsError.
    """
    models = tuple(served_model(name, engine, upstream) for name in names)
    require_distinct(models)
    return models


def served_model(text: str, engine: str, upstream: str | None) -> ServedModel:
    """Parse `--model NAME` for an engine that holds no weights. Raises SettingsError."""
    name, _, _ = text.partition("=")
    if not name:
        raise SettingsError("--model needs a name: NAME=PATH")
    version = "simulated"
    if engine == "openai_http":
        version = hashlib.sha256((upstream or "").encode()).hexdigest()[:POOL_VERSION_DIGITS]
    return ServedModel(name=name, version=version, engine=engine, endpoints=ENDPOINTS)


def require_distinct(models: Sequence[ServedModel]) -> None:
    """Raise SettingsError for two models with one name or pool."""
    for one, other in combinations(models, 2):
        if one.name == other.name:
            raise SettingsError(f"--model {one.name}: each name may be given once")
        if one.pool == other.pool:
            raise SettingsError(
                f"--model {one.name} and {other.name}: both names give the pool {one.pool}"
            )
