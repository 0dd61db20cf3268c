"""Goal: a killed process leaves no lock, and nothing of a live process is removed or evicted."""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from core.clock import SystemClock
from gpu_consumers.weights.errors import (
    ModelRefusedError,
)
from storage.objects.local_object_store import LocalObjectStore
from tests.support.signed_models import WEIGHTS, listed_files, model_contents, store_files
from tests.unit.gpu_consumers.weights.cached_model import VERSION, CachedModel, read_folder

PROGRAM = """
import sys
import time
from hashlib import sha256
from pathlib import Path
from random import Random
from core.clock import SystemClock
from gpu_consumers.weights.weight_cache import WeightCache
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import ObjectBlocks
from tests.support.signed_models import listed_files, model_contents

class Endless(LocalObjectStore):
    def read(self, key, *, offset=0, length=None):
        real = super().read(key, offset=offset, length=length)
        blocks = iter([real._read(500)])
        real.close()
        return ObjectBlocks(lambda n: next(blocks, None) or self.hang(), lambda: None, None)
    def hang(self):
        print("hangs\\n", end="", flush=True)  # of several threads: each writes once
        sys.stdin.read()

root, mode = Path(sys.argv[1]), sys.argv[2]
store = (Endless if mode == "hang" else LocalObjectStore)(root / "objects", clock=SystemClock())
cache = WeightCache(root / "cache", bytes_max=20_000, clock=SystemClock(), wait=time.sleep)
files = listed_files(model_contents(Random(1)))
staged = cache.stage("a" * 64, files, store)
print("staged", flush=True)
sys.stdin.read()
"""


def start(folder: Path, mode: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def line_of(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


@pytest.fixture
def local_world(tmp_path: Path) -> CachedModel:
    cached = CachedModel(tmp_path)
    store_files(LocalObjectStore(tmp_path / "objects", clock=SystemClock()), cached.contents)
    return cached


def test_a_process_killed_while_it_downloads_delays_no_other(local_world: CachedModel) -> None:
    killed = start(local_world.root.parent, "hang")
    try:
        assert line_of(killed) == b"hangs\n"
        assert any(name.startswith("download-") for name in local_world.leftovers())
        local_world.open_cache()  # removes nothing of a process that lives
        assert any(name.startswith("download-") for name in local_world.leftovers())
    finally:
        end(killed)
    with local_world.stage() as staged:
        assert read_folder(staged.folder) == local_world.contents
    assert local_world.leftovers() == []


def test_a_version_is_locked_by_the_process_that_staged_it_until_it_is_killed(
    local_world: CachedModel,
) -> None:
    process = start(local_world.root.parent, "stage")
    local_world.contents = model_contents(Random(2), size=12_000)
    local_world.files = listed_files(local_world.contents)
    store_files(local_world.objects, local_world.contents)
    try:
        assert line_of(process) == b"staged\n"
        with pytest.raises(ModelRefusedError, match="belong to versions that processes"):
            local_world.stage("b" * 64)
        assert (local_world.root / "versions" / VERSION / WEIGHTS).exists()
    finally:
        end(process)
    with local_world.stage("b" * 64) as staged:
        assert read_folder(staged.folder) == local_world.contents
    assert not (local_world.root / "versions" / VERSION).exists()
