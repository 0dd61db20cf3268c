"""Goal: an id is read from the line of its item, and the input is opened only when needed."""

from typing import cast

import pytest

from jobs.input.input_files import InputFile, InputFiles
from results.finaliser.input_custom_ids import UNREADABLE, CompleteCustomIds
from storage.objects.errors import ObjectStoreUnavailableError
from storage.objects.object_store import ObjectBlocks, ObjectReader
from tests.unit.results.views.stored import MemoryObjects

INPUT = b'{"custom_id":"a","body":{}}\n\n  \n{"body":{"custom_id":"no"},"custom_id":"b"}\n' + (
    b'{"custom_id":"\\u00e9"}'
)


class WatchedObjects(MemoryObjects):
    """A store that notes when its readers are opened and closed."""

    def __init__(self, content: bytes) -> None:
        super().__init__({"input": content}, block_bytes=7)
        self.opened: list[str] = []

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
        assert offset == 0
        blocks = super().read(key, offset=offset, length=length)
        self.opened.append("opened")
        return ObjectBlocks(lambda _: next(blocks, b""), lambda: self.opened.append("closed"), None)


def ids_of(store: object, content: bytes) -> CompleteCustomIds:
    files = InputFiles("input", first_bytes=len(content))
    return CompleteCustomIds(cast(ObjectReader, store), files)


@pytest.mark.parametrize(
    ("wanted", "found"), [([0, 1, 2], ["a", "b", "é"]), ([1], ["b"]), ([0, 2], ["a", "é"])]
)
def test_ids_come_in_item_order(wanted: list[int], found: list[str]) -> None:
    store = WatchedObjects(INPUT)
    custom_ids = ids_of(store, INPUT)

    assert store.opened == []
    assert [custom_ids.at(index) for index in wanted] == found
    custom_ids.close()
    assert store.opened == ["opened", "closed"]


def test_unreadable_line_has_no_id() -> None:
    content = b'{"custom_id":"a"}\njunk\n{"custom_id":5}\n\xff\n{"custom_id":"e"}'
    custom_ids = ids_of(WatchedObjects(content), content)

    assert [custom_ids.at(index) for index in range(5)] == ["a", "", "", "", "e"]
    assert custom_ids.unreadable_count == 3


class Cutting:
    """A store that closes each reader after a number of bytes."""

    def __init__(self, content: bytes, after_bytes: int) -> None:
        self._content, self._after_bytes = content, after_bytes
        self.offsets: list[int] = []

    def read(self, _: str, *, offset: int) -> ObjectBlocks:
        self.offsets.append(offset)
        left = [self._content[offset : offset + self._after_bytes]]
        cut_at = offset + self._after_bytes

        def read(_: int) -> bytes:
            if left:
                return left.pop()
            if cut_at < len(self._content):
                raise ObjectStoreUnavailableError
            return b""

        return ObjectBlocks(read, lambda: None, None)


@pytest.mark.parametrize("head", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("tail", [b"", b"\n", b"\r\n\n"])
@pytest.mark.parametrize("step", [1, 4])
def test_closed_reader_continues_at_its_line(head: bytes, tail: bytes, step: int) -> None:
    content = head + b"\n \n".join(b'{"custom_id":"%03d"}' % n for n in range(12)) + tail
    store = Cutting(content, 70)
    custom_ids = ids_of(store, content)

    wanted = range(0, 12, step)
    assert [custom_ids.at(index) for index in wanted] == [f"{index:03}" for index in wanted]
    assert len(store.offsets) > 3
    assert len(set(store.offsets)) == len(store.offsets)
    custom_ids.close()


def test_store_that_stays_unavailable_is_an_error() -> None:
    content = b'{"custom_id":"a"}\n{"custom_id":"b"}\n'
    store = Cutting(content, 20)
    custom_ids = ids_of(store, content)

    assert custom_ids.at(0) == "a"
    for _ in range(2):  # the second line is cut each time
        with pytest.raises(ObjectStoreUnavailableError):
            custom_ids.at(1)
    store._after_bytes = len(content)
    assert custom_ids.at(1) == "b"


def test_missing_or_short_file_does_not_affect_others() -> None:
    first, last = b'{"custom_id":"a"}\njunk\n', b'{"custom_id":"f"}\n'
    store = MemoryObjects({"input": first, "last": last})
    appended = [InputFile("gone", 3, 9), InputFile("last", 5, len(last))]
    files = InputFiles("input", appended, first_bytes=len(first))
    custom_ids = CompleteCustomIds(store.store, files)

    found = [custom_ids.at(index) for index in range(7)]
    assert found == ["a", *[UNREADABLE] * 4, "f", UNREADABLE]
    assert custom_ids.unreadable_count == 5
    custom_ids.close()


def test_unavailable_store_is_no_missing_file() -> None:
    class Unavailable:
        def read(self, _: str, *, offset: int) -> ObjectBlocks:
            raise ObjectStoreUnavailableError

    with pytest.raises(ObjectStoreUnavailableError):
        ids_of(Unavailable(), b"").at(0)
