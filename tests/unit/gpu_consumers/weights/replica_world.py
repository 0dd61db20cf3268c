"""A signed model in a local object store, and a replica that would load it."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from core.clock import SystemClock
from gpu_consumers.weights.cache_locks import try_lock
from gpu_consumers.weights.errors import ModelRefusedError, RefusalReason
from gpu_consumers.weights.model_loading import ModelLoader
from gpu_consumers.weights.weight_cache import WeightCache
from registry.signing.keys import SigningKey
from storage.objects.local_object_store import LocalObjectStore
from tests.support.signed_models import (
    StoredModel,
    model_contents,
    store_model,
)

KEY, OTHER, SECOND = SigningKey.generate(), SigningKey.generate(), SigningKey.generate()


def go_on(_seconds: float) -> bool:
    return False


@dataclass
class Registry:
    """What the registry says; a `RegistryView`."""

    known: set[str] = field(default_factory=set)
    retired: set[str] = field(default_factory=set)
    revoked: set[str] = field(default_factory=set)
    asked: int = 0
    on_second: Callable[[], object] = lambda: None

    def require_loadable(self, version: str) -> None:
        self.asked += 1
        if self.asked == 2:
            self.on_second()
        if version not in self.known:
            raise ModelRefusedError(RefusalReason.UNKNOWN, "unknown")
        if version in self.retired:
            raise ModelRefusedError(RefusalReason.RETIRED, "retired")

    def revoked_keys(self) -> frozenset[str]:
        return frozenset(self.revoked)


class World:
    """A signed model in a local object store, and a replica that would load it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random, self.folder = Random(seed), folder
        self.objects = LocalObjectStore(folder / "objects", clock=SystemClock())
        self.registry = Registry()
        self.trusted = {key.public.key_id: key.public for key in (KEY, SECOND)}
        self.model = self.add(model_contents(self.random), KEY)
        self.loads: list[dict[str, bytes]] = []

    def add(self, contents: dict[str, bytes], *keys: SigningKey) -> StoredModel:
        model = store_model(self.objects, contents, *keys)
        self.registry.known.add(model.version)
        return model

    def object_path(self, path: str) -> Path:
        return self.folder / "objects/models/files" / self.digest(path)

    def cached_path(self, path: str) -> Path:
        return self.folder / "cache/files" / self.digest(path)

    def entry(self, path: str) -> Path:
        return self.folder / "cache/versions" / self.model.version / path

    def digest(self, path: str) -> str:
        return sha256(self.model.contents[path]).hexdigest()

    def random_file(self) -> str:
        return self.random.choice(sorted(self.model.contents))

    def load(self, version: str | None = None) -> None:
        """Stage a version and hand its folder to a loader that reads all of it."""
        cache = WeightCache(self.folder / "cache", bytes_max=10**6, clock=SystemClock(), wait=go_on)
        loader = ModelLoader(self.objects, cache, self.registry, self.trusted, go_on)
        with loader.stage(version or self.model.version) as model:
            self.loads.append(
                {
                    path.relative_to(model.folder).as_posix(): path.read_bytes()
                    for path in model.folder.rglob("*")
                    if not path.is_dir()
                }
            )

    def is_released(self, version: str) -> bool:
        """Whether nobody has the version's folder locked."""
        descriptor = os.open(self.folder / "cache/versions" / version, os.O_RDONLY)
        try:
            return try_lock(descriptor)
        finally:
            os.close(descriptor)

    def refused(self, reason: RefusalReason, version: str | None = None) -> str:
        with pytest.raises(ModelRefusedError) as refusal:
            self.load(version)
        assert refusal.value.reason == reason, str(refusal.value)
        assert self.loads == []
        return str(refusal.value)


def flip_byte(path: Path, random: Random) -> None:
    data = bytearray(path.read_bytes())
    data[random.randrange(len(data))] ^= random.randrange(1, 256)
    path.chmod(0o600)
    path.write_bytes(data)
