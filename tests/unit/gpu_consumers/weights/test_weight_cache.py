"""Goal: the weight cache stages exactly the right bytes, within its limit, through any failure."""

import errno
import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from core.errors import SettingsError
from gpu_consumers.weights.errors import (
    ModelRefusedError,
    RefusalReason,
    StagingStoppedError,
)
from gpu_consumers.weights.weight_cache import WeightCache
from storage.objects.object_store import ObjectBlocks
from tests.support.memory_objects import MemoryStore
from tests.support.signed_models import WEIGHTS, listed_files, model_contents, store_files
from tests.unit.gpu_consumers.weights.cached_model import VERSION, CachedModel, go_on, read_folder


@pytest.fixture
def cached(tmp_path: Path) -> CachedModel:
    return CachedModel(tmp_path)


def test_a_version_folder_has_the_listed_files_read_only_and_private(cached: CachedModel) -> None:
    with cached.stage() as staged:
        assert read_folder(staged.folder) == cached.contents
        assert {path.stat().st_mode & 0o777 for path in staged.folder.rglob("*.json")} == {0o400}
        assert {f.stat().st_mode & 0o777 for f in (cached.root, staged.folder)} == {0o700}
        assert staged.folder.stat().st_uid == os.geteuid()
    assert cached.leftovers() == []


def test_each_file_is_downloaded_once(cached: CachedModel) -> None:
    cached.contents["config.json"] = cached.contents["sub/special_tokens_map.json"]
    cached.files = listed_files(cached.contents)
    for version in (VERSION, VERSION, "b" * 64):
        cached.stage(version).release()
    assert cached.objects.read_count == len(set(cached.contents.values()))


def test_a_cached_version_needs_no_object_store(cached: CachedModel) -> None:
    cached.stage().release()
    cached.objects.is_away = True
    with cached.stage() as staged:
        assert read_folder(staged.folder) == cached.contents


def replace_file(path: Path, content: bytes) -> None:
    other = path.with_name("other")
    other.write_bytes(content)
    other.replace(path)


def overwrite(path: Path) -> None:
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.write(b"\xff\x00\xff")


def link_elsewhere(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    path.unlink()
    path.symlink_to(copy)


def move_folder_behind_link(folder: Path, target: Path) -> None:
    folder.rename(target)
    folder.symlink_to(target)


def damage_cached_file_alone(cached: CachedModel, entry: Path) -> None:
    entry.unlink()
    overwrite(cached.cached(WEIGHTS))


def damage_both(cached: CachedModel, entry: Path) -> None:
    overwrite(cached.cached(WEIGHTS))
    replace_file(entry, bytes(3000))


def link_cached_file(cached: CachedModel, entry: Path) -> None:
    entry.unlink()
    link_elsewhere(cached.cached(WEIGHTS))


def put_folder(_world: CachedModel, entry: Path) -> None:
    entry.unlink()
    entry.mkdir()


def put_pipe(_world: CachedModel, entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry)


DAMAGES: dict[str, Callable[[CachedModel, Path], object]] = {
    "overwritten": lambda _, entry: overwrite(entry),
    "replaced, shorter": lambda _, entry: replace_file(entry, b"other"),
    "replaced, same size": lambda _, entry: replace_file(entry, bytes(3000)),
    "removed": lambda _, entry: entry.unlink(),
    "link": lambda _, entry: link_elsewhere(entry),
    "folder": put_folder,
    "pipe": put_pipe,
    "added file": lambda _, entry: (entry.parent / "added.json").write_text("{}"),
    "added hidden file": lambda _, entry: (entry.parent / ".hidden").write_text("{}"),
    "added folder": lambda _, entry: (entry.parent / "more").mkdir(),
    "renamed folder": lambda _, e: (e.parent / "sub").rename(e.parent / "elsewhere"),
    "linked folder": lambda w, e: move_folder_behind_link(e.parent / "sub", w.root / "moved"),
    "linked version": lambda w, e: move_folder_behind_link(e.parent, w.root / "moved"),
    "cached file": damage_cached_file_alone,
    "cached file and entry": damage_both,
    "cached link": link_cached_file,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_version_is_repaired(
    cached: CachedModel, damage: Callable[[CachedModel, Path], object]
) -> None:
    cached.stage().release()
    damage(cached, cached.root / "versions" / VERSION / WEIGHTS)
    with cached.stage() as staged:
        assert not staged.folder.is_symlink()
        assert read_folder(staged.folder) == cached.contents
        assert not any(path.is_symlink() for path in staged.folder.rglob("*"))
    assert cached.leftovers() == []


def test_a_bad_cached_file_is_quarantined_and_downloaded_once_more(cached: CachedModel) -> None:
    cached.stage().release()
    before = cached.objects.read_count
    overwrite(cached.cached(WEIGHTS))
    cached.stage().release()
    (bad,) = (cached.root / "quarantine").iterdir()
    assert bad.read_bytes().startswith(b"\xff\x00\xff")
    assert cached.objects.read_count == before + 1


def test_quarantine_is_bounded(cached: CachedModel) -> None:
    for _ in range(12):
        cached.stage().release()
        replace_file(cached.root / "versions" / VERSION / WEIGHTS, b"bad")
    assert len(list((cached.root / "quarantine").iterdir())) == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], "2999 of its 3000"),
        (lambda data: data + b"x", "more than its 3000"),
        (lambda data: b"x" + data[1:], "the digest"),
        (lambda data: b"", "0 of its 3000"),
    ],
)
def test_a_bad_object_leaves_nothing(
    cached: CachedModel, change: Callable[[bytes], bytes], message: str
) -> None:
    key = f"models/files/{sha256(cached.contents[WEIGHTS]).hexdigest()}"
    cached.objects.objects[key] = change(cached.objects.objects[key])
    with pytest.raises(ModelRefusedError, match=message) as refusal:
        cached.stage()
    assert refusal.value.reason == RefusalReason.FILE
    assert WEIGHTS in str(refusal.value)
    assert not cached.cached(WEIGHTS).exists()
    assert cached.leftovers() == []


def test_a_missing_object_is_named(cached: CachedModel) -> None:
    del cached.objects.objects[f"models/files/{sha256(cached.contents[WEIGHTS]).hexdigest()}"]
    with pytest.raises(ModelRefusedError, match=rf"{WEIGHTS}.* is not in the object store"):
        cached.stage()


def test_an_interrupted_download_continues_where_it_stopped(cached: CachedModel) -> None:
    reads: list[int] = []
    store = cached.objects

    class Interrupted(MemoryStore):
        def read(self, key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
            reads.append(offset)
            blocks = store.read(key, offset=offset, length=100)
            if offset + 100 < store.size(key):
                return ObjectBlocks(
                    lambda n: next(blocks, None) or self._fail(), blocks.close, None
                )
            return blocks

        def _fail(self) -> bytes:
            self.is_away = True
            self._require_available()
            return b""

    objects = Interrupted()
    with cached.open_cache().stage(VERSION, cached.files, objects) as staged:
        assert read_folder(staged.folder) == cached.contents
    assert max(reads) == 2900


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["posix_fallocate", "write", "fsync"])
def test_a_full_disk_leaves_nothing_partial(
    cached: CachedModel, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    real = getattr(os, call)
    calls = []

    def full(descriptor: int, *arguments: object) -> object:
        calls.append(descriptor)
        if len(calls) >= 4:
            raise OSError(code, "full")
        return real(descriptor, *arguments)

    cache = cached.open_cache()
    monkeypatch.setattr(os, call, full)
    with pytest.raises(ModelRefusedError, match="full") as refusal:
        cache.stage(VERSION, cached.files, cached.objects)
    assert refusal.value.reason == RefusalReason.CACHE
    monkeypatch.undo()
    assert cached.leftovers() == []
    for path in (cached.root / "files").iterdir():
        assert sha256(path.read_bytes()).hexdigest() == path.name
    with cached.stage() as staged:
        assert read_folder(staged.folder) == cached.contents


def test_concurrent_processes_download_each_file_once(cached: CachedModel) -> None:
    results: list[dict[str, bytes]] = []

    def stage() -> None:
        with cached.stage() as staged:
            results.append(read_folder(staged.folder))

    threads = [threading.Thread(target=stage) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [cached.contents] * 8
    assert cached.objects.read_count == len(cached.contents)


def test_a_version_larger_than_the_limit_is_refused_and_nothing_is_evicted(tmp_path: Path) -> None:
    cached = CachedModel(tmp_path, bytes_max=5000)
    small = listed_files({"config.json": b"{}"})
    store_files(cached.objects, {"config.json": b"{}"})
    cached.open_cache().stage("b" * 64, small, cached.objects).release()
    with pytest.raises(ModelRefusedError, match="bytes; the weight cache may") as r:
        WeightCache(cached.root, bytes_max=4000, clock=cached.clock, wait=go_on).stage(
            VERSION, cached.files, cached.objects
        )
    assert r.value.reason == RefusalReason.CACHE
    assert (cached.root / "versions" / ("b" * 64) / "config.json").exists()


def test_what_was_used_least_recently_is_evicted(tmp_path: Path) -> None:
    cached = CachedModel(tmp_path, bytes_max=12_000)
    for seed, version in ((1, "b"), (2, "c"), (3, "b"), (4, "d")):
        cached.clock.advance(1.0)
        cached.contents = model_contents(Random({3: 1}.get(seed, seed)))
        cached.files = listed_files(cached.contents)
        store_files(cached.objects, cached.contents)
        cached.stage(version * 64).release()
    assert {path.name[0] for path in (cached.root / "versions").iterdir()} == {"b", "d"}


def test_staging_ends_when_the_process_stops(cached: CachedModel) -> None:
    cache = WeightCache(cached.root, bytes_max=20_000, clock=cached.clock, wait=lambda s: s == 0)
    with pytest.raises(StagingStoppedError):
        cache.stage(VERSION, cached.files, cached.objects)
    assert cached.leftovers() == []


def test_the_folder_is_made_private_and_may_be_no_link(cached: CachedModel, tmp_path: Path) -> None:
    cached.root.mkdir(mode=0o755)
    cached.open_cache()
    assert cached.root.stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(cached.root)
    with pytest.raises(SettingsError, match="link"):
        WeightCache(tmp_path / "link", bytes_max=1, clock=cached.clock, wait=go_on)


@pytest.fixture
def file_limit() -> Iterator[Callable[[int], None]]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda count: resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


def test_a_file_that_the_system_does_not_let_grow_is_refused(
    cached: CachedModel, file_limit: Callable[[int], None]
) -> None:
    cache = cached.open_cache()
    file_limit(2000)
    with pytest.raises(ModelRefusedError, match="is full"):
        cache.stage(VERSION, cached.files, cached.objects)
    assert cached.leftovers() == []
    assert not cached.cached(WEIGHTS).exists()
