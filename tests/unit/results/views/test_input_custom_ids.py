"""Goal: custom ids of rows without one are found in files, and files are read once."""

import random
import sys
from dataclasses import replace

import pytest

from jobs.input.input_files import InputFile, InputFiles
from results.finaliser import input_custom_ids
from results.finaliser.input_custom_ids import InputCustomIds
from results.views.item_custom_ids import ItemCustomIds
from storage.objects.errors import ObjectStoreUnavailableError
from storage.objects.object_store import ObjectBlocks
from tests.unit.results.views.stored import JOB_ID, MemoryObjects, source

COUNT = 3000


def lines(prefix: str, count: int) -> bytes:
    return b"".join(b'{"custom_id":"%s-%d"}\n' % (prefix.encode(), n) for n in range(count))


def nearly_in_order(count: int) -> list[int]:
    """Indexes in the order of results of a replica that runs a hundred items at once."""
    rng = random.Random(5)
    return sorted(range(count), key=lambda index: index + rng.random() * 100)


def checked_names(store: MemoryObjects, order: list[int], *, zero_retention: bool = True) -> int:
    """Look up every index, in two files of `COUNT` items; return the size of both files."""
    names = ItemCustomIds(store.store, source(store, zero_retention=zero_retention))
    for index in order:
        part, number = ("a", index) if index < COUNT else ("b", index - COUNT)
        assert names.at(index) == f"{part}-{number}"
    names.close()
    return sum(len(data) for data in store.objects.values())


def test_nearly_ordered_results_read_the_input_once() -> None:
    store = MemoryObjects({"input": lines("a", COUNT), "input-2": lines("b", COUNT)})
    assert store.bytes_read < 2 * checked_names(store, nearly_in_order(2 * COUNT))


def far_apart(count: int) -> list[int]:
    """Indexes of which every tenth is from the other half, like copies and late items."""
    half = count // 2
    late = iter(range(half))
    order: list[int] = []
    for index in range(half, count):
        order.append(index)
        if index % 10 == 0:
            order.append(next(late))
    return order


@pytest.mark.parametrize("zero_retention", [True, False])
def test_distant_item_reads_part_of_the_file(
    zero_retention: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_custom_ids, "_CHECKPOINT_BYTES", 2000)
    monkeypatch.setattr(input_custom_ids, "SKIPPED_BYTES_MAX", 20_000)
    store = MemoryObjects({"input": lines("a", COUNT), "input-2": lines("b", COUNT)})
    order = far_apart(2 * COUNT)
    whole = checked_names(store, order, zero_retention=zero_retention)
    jumps = 2 * (len(order) - COUNT)
    assert store.bytes_read < 2 * whole + jumps * 4000  # a stretch and its last block each


def test_memory_for_skipped_ids_is_bounded() -> None:
    long = b"".join(b'{"custom_id":"%0510d"}\n' % n for n in range(10_000))
    store = MemoryObjects({"input": long}, block_bytes=64 * 1024)
    files = InputFiles("input", first_bytes=len(long))
    names = InputCustomIds(store.store, files, keeps_skipped=True)
    assert names.at(9_999) == f"{9_999:0510}"

    kept_bytes = sum(map(sys.getsizeof, names._skipped.values()))
    assert 0 < kept_bytes <= input_custom_ids.SKIPPED_BYTES_MAX
    assert names._skipped_bytes <= input_custom_ids.SKIPPED_BYTES_MAX
    assert names.at(1) == f"{1:0510}"
    names.close()


def test_one_file_appended_twice_keeps_its_items_apart() -> None:
    store = MemoryObjects({"input": lines("a", 3)})
    size = len(store.objects["input"])
    twice = InputFiles("input", [InputFile("input", 3, size)], first_bytes=size)
    names = ItemCustomIds(store.store, replace(source(store, zero_retention=True), inputs=twice))

    assert [names.at(index) for index in (4, 0, 5, 3)] == ["a-1", "a-0", "a-2", "a-0"]
    names.close()


def test_failed_read_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryObjects({"input": lines("a", 100)})
    names = ItemCustomIds(store.store, source(store, zero_retention=True))
    with monkeypatch.context() as unavailable:

        def fail(*_: object) -> str:
            raise ObjectStoreUnavailableError

        unavailable.setattr(input_custom_ids, "read_custom_id", fail)
        with pytest.raises(ObjectStoreUnavailableError):
            names.at(5)
    assert names.at(5) == "a-5"
    names.close()


class CuttingObjects(MemoryObjects):
    """A store that closes its readers when a test says so."""

    is_cut = False

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
        blocks = iter(super().read(key, offset=offset, length=length))

        def take(_: int) -> bytes:
            if self.is_cut:
                self.is_cut = False
                raise ObjectStoreUnavailableError
            return next(blocks, b"")

        return ObjectBlocks(take, lambda: None, None)


def test_closed_reader_continues() -> None:
    store = CuttingObjects({"input": lines("a", 1000)})
    names = ItemCustomIds(store.store, source(store, zero_retention=True))
    found = []
    for index in range(0, 1000, 100):
        found.append(names.at(index))
        store.is_cut = True

    assert found == [f"a-{index}" for index in range(0, 1000, 100)]
    names.close()


def test_deleted_input_is_replaced_by_the_result_files() -> None:
    def written(*indexes: int) -> bytes:
        return b"".join(
            b'{"id":"batch_req_%s%08x","custom_id":"c-%d"}\n' % (JOB_ID.hex.encode(), n, n)
            for n in indexes
        )

    store = MemoryObjects({"output": written(0, 2, 3), "error": written(1)})
    files = {"output": "output", "error": "error", "state": "completed"}
    names = ItemCustomIds(store.store, source(store, **files, zero_retention=True))
    assert [names.at(index) for index in (3, 0, 1, 2, 4)] == ["c-3", "c-0", "c-1", "c-2", None]
    names.close()
