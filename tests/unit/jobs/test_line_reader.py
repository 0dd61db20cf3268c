"""Goal: every line has its number, offset and file; reading resumes with few reads."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.clock import SystemClock
from jobs.expansion.cursors import ExpansionCursor
from jobs.input import line_reader
from jobs.input.input_files import InputFile, InputFiles
from jobs.input.line_reader import BOM, Line, input_lines, read_lines_at
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import ObjectBlocks, write_object


def lines(data: bytes) -> list[Line]:
    return list(input_lines([data], line_bytes_max=100))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", []),
        (b"a", [(1, 0, b"a")]),
        (b"a\nb\n", [(1, 0, b"a"), (2, 2, b"b")]),
        (b"a\r\nb", [(1, 0, b"a\r"), (2, 3, b"b")]),
        (b"\n \t\r\n\na\n\n", [(4, 6, b"a")]),
        (b"\xef\xbb\xbfa\nb", [(1, 3, b"a"), (2, 5, b"b")]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbf\n\xef\xbb\xbfa", [(2, 4, b"\xef\xbb\xbfa")]),
        (b"\xef\xbb", [(1, 0, b"\xef\xbb")]),
        (b"a\rb\x0bc\x0cd\n", [(1, 0, b"a\rb\x0bc\x0cd")]),
    ],
)
def test_lines(data: bytes, expected: list[Line]) -> None:
    assert lines(data) == expected


class CountedReads(LocalObjectStore):
    reads = 0

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
        self.reads += 1
        return super().read(key, offset=offset, length=length)


@pytest.fixture
def objects(tmp_path: Path) -> CountedReads:
    return CountedReads(tmp_path, clock=SystemClock())


def store(objects: LocalObjectStore, content: bytes) -> None:
    write_object(objects, "in", content)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    positions=st.sets(st.integers(0, 29)),
    ends=st.booleans(),
    marked=st.booleans(),
)
def test_lines_are_read_by_their_offsets(
    objects: CountedReads,
    monkeypatch: pytest.MonkeyPatch,
    sizes: list[int],
    positions: set[int],
    ends: bool,
    marked: bool,
) -> None:
    monkeypatch.setattr(line_reader, "_SPAN_BYTES", 50)
    monkeypatch.setattr(line_reader, "_LINE_BYTES", 16)
    text = b"\n".join(b"%d" % size * size for size in sizes) + b"\n" * ends
    content = BOM * marked + text
    store(objects, content)
    found = list(input_lines(iter([content]), line_bytes_max=1 << 20))
    chosen = [line for position, line in enumerate(found) if position in positions]
    offsets = [offset for _, offset, _ in chosen]
    assert list(read_lines_at(objects, "in", offsets)) == [line for _, _, line in chosen]


def test_offset_zero_is_the_first_nonblank_line(objects: CountedReads) -> None:
    store(objects, BOM + b" \n\nfirst\nsecond\n")
    assert list(read_lines_at(objects, "in", [0])) == [b"first"]


def test_nearby_lines_share_one_read(objects: CountedReads) -> None:
    store(objects, b"12345678\n" * 10_000)
    assert list(read_lines_at(objects, "in", range(9, 90_000, 9))) == [b"12345678"] * 9999
    assert objects.reads == 1


def test_an_offset_behind_the_end_has_no_line(objects: CountedReads) -> None:
    store(objects, b"line\n")
    assert list(read_lines_at(objects, "in", [5, 99])) == [None, None]


THREE = InputFiles("a", [InputFile("b", 10), InputFile("c", 15)])


def test_file_at_returns_the_file_that_holds_an_item() -> None:
    assert [THREE.file_at(index).key for index in (0, 9, 10, 14, 15, 999)] == list("aabbcc")
    assert [THREE.count_left(index) for index in (0, 9, 10, 14, 15)] == [10, 1, 5, 1, None]
    assert [file.key for file in THREE] == ["a", "b", "c"]


def test_a_single_file_holds_every_item() -> None:
    one = InputFiles("a")
    assert (one.file_at(0).key, one.file_at(10**6).key, one.count_left(5)) == ("a", "a", None)
    assert one.reading_start(ExpansionCursor()) == ExpansionCursor()


def test_reading_a_new_file_starts_at_its_first_byte() -> None:
    assert THREE.reading_start(ExpansionCursor(900, 12, 9)) == ExpansionCursor(900, 12, 9)
    assert THREE.reading_start(ExpansionCursor(1000, 13, 10)) == ExpansionCursor(0, 0, 10)
    assert THREE.reading_start(ExpansionCursor(70, 1, 11)) == ExpansionCursor(70, 1, 11)


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=6), indexes=st.sets(st.integers(0, 299))
)
def test_entries_are_grouped_by_file_in_order(sizes: list[int], indexes: set[int]) -> None:
    firsts = [sum(sizes[:n]) for n in range(len(sizes))]
    files = InputFiles("f0", [InputFile(f"f{n}", first) for n, first in enumerate(firsts) if n])
    found = list(files.group_by_file(sorted(indexes), lambda index: index))
    assert [index for _, group in found for index in group] == sorted(indexes)
    assert len({file.key for file, _ in found}) == len(found)
    assert all(files.file_at(index) == file for file, group in found for index in group)
