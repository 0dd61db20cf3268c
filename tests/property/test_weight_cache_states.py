"""Goal: whatever is staged or damaged, the weight cache keeps its limit and serves right bytes."""

import shutil
from pathlib import Path
from tempfile import mkdtemp

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu_consumers.weights.cache_folders import CacheFolders
from gpu_consumers.weights.errors import ModelRefusedError
from gpu_consumers.weights.weight_cache import StagedVersion, WeightCache
from tests.support.clock import ManualClock
from tests.support.memory_objects import MemoryStore
from tests.support.signed_models import listed_files, store_files

BYTES_MAX = 1000
FILES = {
    f"{size}.json": bytes([65 + number]) * size for number, size in enumerate(range(100, 600, 100))
}
MODELS = [
    {name: FILES[name] for name in names}
    for names in (
        ["100.json", "200.json"],
        ["100.json", "300.json", "400.json"],
        ["200.json", "500.json"],
        ["400.json"],
        ["300.json", "500.json", "200.json"],
        ["500.json", "400.json", "200.json"],  # larger than the cache
    )
]


class WeightCacheStates(RuleBasedStateMachine):
    """One cache folder, used by several caches as by several processes."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(mkdtemp()) / "cache"
        self.clock, self.objects = ManualClock(1.0), MemoryStore()
        store_files(self.objects, FILES)
        self.staged: list[tuple[int, StagedVersion]] = []
        self.cache = self.open_cache()

    def open_cache(self) -> WeightCache:
        return WeightCache(self.root, bytes_max=BYTES_MAX, clock=self.clock, wait=lambda _: False)

    @rule(number=st.sampled_from(range(len(MODELS))))
    def stage(self, number: int) -> None:
        self.clock.advance(1.0)
        files = listed_files(MODELS[number])
        try:
            staged = self.cache.stage(str(number) * 64, files, self.objects)
        except ModelRefusedError:
            assert self.staged_bytes(number) > BYTES_MAX
        else:
            self.staged.append((number, staged))

    def staged_bytes(self, *numbers: int) -> int:
        """The bytes of these models and of all that are staged."""
        used = {*numbers, *(number for number, _ in self.staged)}
        return sum(len(FILES[name]) for name in {n for number in used for n in MODELS[number]})

    @precondition(lambda self: self.staged)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.clock.advance(1.0)
        _, staged = self.staged.pop(data.draw(st.integers(0, len(self.staged) - 1)))
        staged.release()

    @rule()
    def open_again(self) -> None:
        """As another process that starts."""
        self.cache = self.open_cache()

    @rule(data=st.data(), is_cut=st.booleans())
    def damage(self, data: st.DataObject, is_cut: bool) -> None:
        """Overwrite or cut a file that no staged version has."""
        used = {path.stat().st_ino for _, staged in self.staged for path in staged.folder.iterdir()}
        free = [
            path
            for folder in ("files", "versions")
            for path in sorted((self.root / folder).rglob("*"))
            if path.is_file() and path.stat().st_ino not in used
        ]
        if free:
            path = data.draw(st.sampled_from(free))
            path.chmod(0o600)
            with path.open("r+b") as file:
                if is_cut:
                    file.truncate(50)
                else:
                    file.write(b"\0")

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """Remove an entry of a version that is not staged."""
        kept = {staged.folder for _, staged in self.staged}
        entries = sorted((self.root / "versions").rglob("*.json"))
        free = [path for path in entries if path.parent not in kept]
        if free:
            data.draw(st.sampled_from(free)).unlink()

    @invariant()
    def staged_versions_have_the_right_bytes(self) -> None:
        for number, staged in self.staged:
            content = {path.name: path.read_bytes() for path in staged.folder.iterdir()}
            assert content == MODELS[number]

    @invariant()
    def the_limit_holds(self) -> None:
        assert CacheFolders(self.root).used_bytes() <= BYTES_MAX
        assert list((self.root / "temporary").iterdir()) == []

    def teardown(self) -> None:
        for _, staged in self.staged:
            staged.release()
        shutil.rmtree(self.root.parent)


TestWeightCacheStates = WeightCacheStates.TestCase
TestWeightCacheStates.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
