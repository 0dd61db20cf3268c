"""Goal: files that were altered, added, dropped, linked or swapped never reach the loader (P22).

Each alteration runs with 50 seeds, which choose the file, offset and byte. Objects and cache are
real files.
"""

import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from core.clock import SystemClock
from gpu_consumers.weights.errors import ModelRefusedError, RefusalReason
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import ObjectBlocks
from tests.support.signed_models import (
    TEMPLATE,
    TOKENIZER,
    WEIGHTS,
)
from tests.unit.gpu_consumers.weights.replica_world import World, flip_byte


def test_the_unaltered_model_loads(worlds: Iterator[World]) -> None:
    for world in worlds:
        world.load()
        assert world.loads == [dict(world.model.contents)]


@pytest.mark.parametrize("path", [WEIGHTS, TOKENIZER, TEMPLATE])
def test_a_flipped_byte_of_an_object(worlds: Iterator[World], path: str) -> None:
    for world in worlds:
        flip_byte(world.object_path(path), world.random)
        assert path in world.refused(RefusalReason.FILE)


def test_a_flipped_byte_of_a_cached_file_is_repaired_or_refused(worlds: Iterator[World]) -> None:
    for world in worlds:
        world.load()
        path = world.random_file()
        flip_byte(world.cached_path(path), world.random)
        world.load()
        assert world.loads == [dict(world.model.contents)] * 2
        flip_byte(world.cached_path(path), world.random)
        world.object_path(path).unlink()
        world.loads.clear()
        assert path in world.refused(RefusalReason.FILE)


def test_a_truncated_or_longer_object(worlds: Iterator[World]) -> None:
    for world in worlds:
        path = world.random_file()
        size = len(world.model.contents[path])
        with world.object_path(path).open("r+b") as file:
            file.truncate(world.random.choice([world.random.randrange(size), size + 1]))
        assert path in world.refused(RefusalReason.FILE)


def test_a_dropped_object(worlds: Iterator[World]) -> None:
    for world in worlds:
        path = world.random_file()
        world.object_path(path).unlink()
        assert path in world.refused(RefusalReason.FILE)


def test_an_object_of_another_file(worlds: Iterator[World]) -> None:
    """Two objects change places: each is a signed file of the model, and in the wrong place."""
    for world in worlds:
        one, other = world.random.sample([WEIGHTS, TOKENIZER, TEMPLATE], 2)
        first, second = world.object_path(one), world.object_path(other)
        first.rename(first.with_name("x"))
        second.rename(first)
        first.with_name("x").rename(second)
        world.refused(RefusalReason.FILE)


def test_an_added_file_in_the_cached_folder_is_not_loaded(worlds: Iterator[World]) -> None:
    for world in worlds:
        world.load()
        name = world.random.choice(["tokenizer_config.json", "modeling.py", ".hidden", "sub/x.bin"])
        world.entry(name).write_bytes(world.random.randbytes(10))
        world.load()
        assert world.loads == [dict(world.model.contents)] * 2


def test_a_dropped_file_of_the_cached_folder_is_restored(worlds: Iterator[World]) -> None:
    for world in worlds:
        world.load()
        world.entry(world.random_file()).unlink()
        world.load()
        assert world.loads == [dict(world.model.contents)] * 2


def test_a_link_in_place_of_an_object_with_other_content(worlds: Iterator[World]) -> None:
    for world in worlds:
        path = world.random_file()
        target = world.folder / "target"
        target.write_bytes(world.random.randbytes(len(world.model.contents[path])))
        world.object_path(path).unlink()
        world.object_path(path).symlink_to(target)
        assert path in world.refused(RefusalReason.FILE)


def test_a_link_in_the_cached_folder_is_replaced(worlds: Iterator[World]) -> None:
    """Even one to the right content: the content may change after it was hashed."""
    for world in worlds:
        world.load()
        path = world.random_file()
        target = world.folder / "target"
        target.write_bytes(world.model.contents[path])
        world.entry(path).unlink()
        world.entry(path).symlink_to(target)
        world.load()
        assert not world.entry(path).is_symlink()
        assert world.loads == [dict(world.model.contents)] * 2


class Swapping(LocalObjectStore):
    """Replaces an entry of the version's folder while another file is downloaded."""

    def attack(self, world: World, path: str) -> None:
        self.entry, self.bad = world.entry(path), bytes(len(world.model.contents[path]))
        self.folder = world.folder

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
        if self.entry.exists():
            other = self.folder / f"other-{threading.get_ident()}"
            other.write_bytes(self.bad)
            other.replace(self.entry)
        return super().read(key, offset=offset, length=length)


def test_a_swap_after_the_download_is_found(worlds: Iterator[World]) -> None:
    for world in worlds:
        world.objects = swapping = Swapping(world.folder / "objects", clock=SystemClock())
        swapping.attack(world, world.random_file())
        world.load()
        assert world.loads == [dict(world.model.contents)]


def swap_until(stop: threading.Event, world: World, path: str) -> None:
    """Replace the cached file by another of the same size, over and over."""
    bad, other = bytes(len(world.model.contents[path])), world.folder / "other"
    while not stop.is_set():
        with suppress(FileNotFoundError):
            other.write_bytes(bad)
            world.cached_path(path).lstat()
            other.replace(world.cached_path(path))


def test_a_swap_between_the_hash_and_the_load_is_not_seen(worlds: Iterator[World]) -> None:
    """The loader reads the folder whose files were hashed, whatever lies in the cache by then."""
    for world in worlds:
        stop = threading.Event()
        thread = threading.Thread(target=swap_until, args=(stop, world, world.random_file()))
        thread.start()
        try:
            for _ in range(3):
                with suppress(ModelRefusedError):  # it may meet the bad file at each repair
                    world.load()
        finally:
            stop.set()
            thread.join()
        world.load()
        assert [load for load in world.loads if load != world.model.contents] == []
