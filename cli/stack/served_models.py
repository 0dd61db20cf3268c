"""The models that an embedded stack serves, with one pool and one replica for each."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from core.errors import SettingsError
from gpu_consumers.engines.model_kind import endpoints_of_folder
from registry.models import ENDPOINTS

_VERSION_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model version and its pool."""

    name: str
    version: str
    engine: str
    endpoints: tuple[str, ...]
    path: Path | None = None

    @property
    def pool(self) -> str:
        """The name of the pool, which contains the version: pools never mix versions."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-") or "model"
        return f"{slug[:40].rstrip('-')}-{self.version}"


def served_models(
    texts: Sequence[str], engine: str, upstream: str | None
) -> tuple[ServedModel, ...]:
    """Parse every `--model`. Raises SettingsError for two with one name or pool."""
    models = tuple(served_model(text, engine, upstream) for text in texts)
    for one, other in combinations(models, 2):
        if one.name == other.name:
            raise SettingsError(f"--model {one.name}: each name may be given once")
        if one.pool == other.pool:
            raise SettingsError(
                f"--model {one.name} and {other.name}: both names give the pool {one.pool}"
            )
    return models


def served_model(text: str, engine: str, upstream: str | None) -> ServedModel:
    """Parse `--model NAME[=PATH]` for `engine`. Raises SettingsError."""
    name, _, path_text = text.partition("=")
    if not name:
        raise SettingsError("--model needs a name: NAME=PATH")
    if engine != "vllm":
        version = _digest(upstream or "") if engine == "openai_http" else "simulated"
        return ServedModel(name=name, version=version, engine=engine, endpoints=ENDPOINTS)
    if not path_text:
        raise SettingsError(f"--model {name}: the vllm engine needs NAME=PATH")
    path = Path(path_text).expanduser().absolute()
    return ServedModel(
        name=name,
        version=folder_version(path),
        engine=engine,
        endpoints=endpoints_of_folder(path),
        path=path,
    )


def folder_version(path: Path) -> str:
    """Return a hash of the configuration, the file names and the file sizes."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    listing = "\n".join(f"{file.relative_to(path)} {file.stat().st_size}" for file in files)
    config = (path / "config.json").read_text() if (path / "config.json").exists() else ""
    return _digest(listing + config)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_VERSION_DIGITS]
