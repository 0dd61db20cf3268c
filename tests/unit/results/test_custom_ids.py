"""Goal: an id is read from the line of its item, and the input is opened only when needed."""

from collections.abc import Callable

import pytest

from results.writer.custom_ids import UNREADABLE, CustomIds, InputShorterError, JobCustomIds
from storage.objects.errors import ObjectNotFoundError, ObjectStoreUnavailableError
from storage.objects.object_store import ObjectBlocks

INPUT = b'{"custom_id":"a","body":{}}\n\n  \n{"body":{"custom_id":"no"},"custom_id":"b"}\n' + (
    b'{"custom_id":"\\u00e9"}'
)


def opener(content: bytes, block_bytes: int = 7) -> tuple[Callable[[int], ObjectBlocks], list[str]]:
    opened: list[str] = []

    def open_input(offset: int) -> ObjectBlocks:
        assert offset == 0
        opened.append("opened")
        pieces = iter([content[n : n + block_bytes] for n in range(0, len(content), block_bytes)])
        return ObjectBlocks(lambda _: next(pieces, b""), lambda: opened.append("closed"), None)

    return open_input, opened


@pytest.mark.parametrize(
    ("wanted", "found"), [([0, 1, 2], ["a", "b", "é"]), ([1], ["b"]), ([0, 2], ["a", "é"])]
)
def test_ids_come_in_item_order(wanted: list[int], found: list[str]) -> None:
    open_input, opened = opener(INPUT)
    custom_ids = CustomIds(open_input, input_bytes=len(INPUT))

    assert [custom_ids.at(index) for index in wanted] == found
    custom_ids.close()
    assert opened == ["opened", "closed"]


def test_file_is_opened_on_first_use() -> None:
    open_input, opened = opener(INPUT)

    CustomIds(open_input, input_bytes=len(INPUT)).close()

    assert opened == []


def test_short_input_is_an_error() -> None:
    open_input, _ = opener(INPUT)

    with pytest.raises(InputShorterError):
        CustomIds(open_input, input_bytes=len(INPUT)).at(3)


def test_unreadable_line_has_no_id() -> None:
    content = b'{"custom_id":"a"}\njunk\n{"custom_id":5}\n\xff\n{"custom_id":"e"}'
    open_input, _ = opener(content)
    custom_ids = CustomIds(open_input, input_bytes=len(content))

    assert [custom_ids.at(index) for index in range(5)] == ["a", "", "", "", "e"]
    assert custom_ids.unreadable_count == 3


class Cutting:
    """A store that closes each reader after a number of bytes."""

    def __init__(self, content: bytes, after_bytes: int) -> None:
        self._content, self._after_bytes = content, after_bytes
        self.offsets: list[int] = []

    def open_input(self, offset: int) -> ObjectBlocks:
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
    custom_ids = CustomIds(store.open_input, input_bytes=len(content))

    wanted = range(0, 12, step)
    assert [custom_ids.at(index) for index in wanted] == [f"{index:03}" for index in wanted]
    assert len(store.offsets) > 3
    assert len(set(store.offsets)) == len(store.offsets)
    custom_ids.close()


def test_store_that_stays_unavailable_is_an_error() -> None:
    content = b'{"custom_id":"a"}\n{"custom_id":"b"}\n'
    store = Cutting(content, 20)
    custom_ids = CustomIds(store.open_input, input_bytes=len(content))

    assert custom_ids.at(0) == "a"
    for _ in range(2):  # the second line is cut each time
        with pytest.raises(ObjectStoreUnavailableError):
            custom_ids.at(1)
    store._after_bytes = len(content)
    assert custom_ids.at(1) == "b"


def test_missing_or_short_file_does_not_affect_others() -> None:
    def gone(_: int) -> ObjectBlocks:
        raise ObjectNotFoundError

    def file(content: bytes) -> CustomIds:
        return CustomIds(opener(content)[0], input_bytes=len(content))

    short = file(b'{"custom_id":"a"}\njunk\n')
    last = file(b'{"custom_id":"f"}\n')
    custom_ids = JobCustomIds([(0, short), (3, CustomIds(gone, input_bytes=9)), (5, last)])

    found = [custom_ids.at(index) for index in range(7)]
    assert found == ["a", *[UNREADABLE] * 4, "f", UNREADABLE]
    assert custom_ids.unreadable_count == 5
    custom_ids.close()


def test_unavailable_store_is_no_missing_file() -> None:
    def unavailable(_: int) -> ObjectBlocks:
        raise ObjectStoreUnavailableError

    with pytest.raises(ObjectStoreUnavailableError):
        JobCustomIds([(0, CustomIds(unavailable, input_bytes=9))]).at(0)
