"""A weight cache, an object store in memory, and a model in it."""

from hashlib import sha256
from pathlib import Path
from random import Random

from gpu_consumers.weights.weight_cache import StagedVersion, WeightCache
from tests.support.clock import ManualClock
from tests.support.memory_objects import MemoryStore
from tests.support.signed_models import listed_files, model_contents, store_files

VERSION = "a" * 64


def go_on(_seconds: float) -> bool:
    """Wait for nothing, and do not stop."""
    return False


class CachedModel:
    """A cache, an object store, and one model in it."""

    def __init__(self, folder: Path, *, bytes_max: int = 20_000) -> None:
        self.root, self.bytes_max, self.clock = folder / "cache", bytes_max, ManualClock(100.0)
        self.objects, self.contents = MemoryStore(), model_contents(Random(1))
        self.files = listed_files(self.contents)
        store_files(self.objects, self.contents)

    def open_cache(self) -> WeightCache:
        return WeightCache(self.root, bytes_max=self.bytes_max, clock=self.clock, wait=go_on)

    def stage(self, version: str = VERSION) -> StagedVersion:
        return self.open_cache().stage(version, self.files, self.objects)

    def cached(self, path: str) -> Path:
        return self.root / "files" / sha256(self.contents[path]).hexdigest()

    def leftovers(self) -> list[str]:
        return [path.name for path in (self.root / "temporary").iterdir()]


def read_folder(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if not path.is_dir()
    }
